"""One call: options, plug-ins by name, the answer in the making."""
