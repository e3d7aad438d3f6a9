"""One call: options, plug-ins by name, and the answer."""
