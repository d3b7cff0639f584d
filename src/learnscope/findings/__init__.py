"""From records to findings: statements about a run with their evidence and what to do about them.

Each analysis is a function of a run and of the cuts. None needs torch.
"""

from learnscope.findings.absent import absent
from learnscope.findings.activations import activations
from learnscope.findings.adapters import adapters
from learnscope.findings.audit_bits import audit_bits
from learnscope.findings.audit_deployment import audit_deployment
from learnscope.findings.audit_performance import audit_performance
from learnscope.findings.audit_robustness import audit_robustness
from learnscope.findings.cuts import Cuts
from learnscope.findings.first_moved import first_moved
from learnscope.findings.frozen import frozen
from learnscope.findings.gather import one_pass
from learnscope.findings.generalising import generalising
from learnscope.findings.gradients import gradients
from learnscope.findings.grokking import grokking
from learnscope.findings.landscape import landscape
from learnscope.findings.nonfinite import nonfinite
from learnscope.findings.overfitting import overfitting
from learnscope.findings.precision import precision
from learnscope.findings.rates import rates
from learnscope.findings.session import session
from learnscope.findings.spurious import spurious
from learnscope.findings.update_quality import update_quality
from learnscope.record import SEVERITIES, Finding
from learnscope.store.reader import RunReader

__all__ = ["Cuts", "find"]

ANALYSES = (
    nonfinite, gradients, absent, rates, generalising, overfitting, frozen, activations, landscape, precision,
    update_quality, adapters, session, grokking, spurious, first_moved, audit_performance, audit_bits,
    audit_robustness, audit_deployment,
)  # fmt: skip


def find(reader: RunReader, cuts: Cuts | None = None) -> list[Finding]:
    """All findings of a run, the gravest first."""
    cuts = cuts or Cuts()
    run = one_pass(reader)
    found = [finding for analysis in ANALYSES for finding in analysis(run, cuts)]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))
