"""The proof that speculation did not change the output: for Paceline, and for any server."""

from paceline.audit.answers import NamedPrompt
from paceline.audit.endpoint import Endpoint, EndpointSettings
from paceline.audit.laws import check_law
from paceline.audit.local import LocalSettings, audit_model
from paceline.audit.remote import RemoteSettings, audit_endpoints
from paceline.audit.sampling import SamplingSettings
from paceline.audit.scripts import Parts
from paceline.audit.verdicts import Audit, Finding, Verdict

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
