"""The proof that speculation did not change the output: for Paceline, and for any server."""

from paceline.workbench.audit.answers import NamedPrompt
from paceline.workbench.audit.endpoint import Endpoint, EndpointSettings
from paceline.workbench.audit.laws import check_law
from paceline.workbench.audit.local import LocalSettings, audit_model
from paceline.workbench.audit.remote import RemoteSettings, audit_endpoints
from paceline.workbench.audit.sampling import SamplingSettings
from paceline.workbench.audit.scripts import Parts
from paceline.workbench.audit.verdicts import Audit, Finding, Verdict

__all__ = [
    "Audit",
    "Endpoint",
    "EndpointSettings",
    "Finding",
    "LocalSettings",
    "NamedPrompt",
    "Parts",
    "RemoteSettings",
    "SamplingSettings",
    "Verdict",
    "audit_endpoints",
    "audit_model",
    "check_law",
]
