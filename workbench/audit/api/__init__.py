"""The audits of the public Python API; `workbench audit`, `replay` and `plan` call the same functions.

Arguments are coerced or refused in one line that names the argument. Each function returns an `AuditResult`
(a `PlanResult`), whose `record` is the report that `--json` writes. Importing these modules imports no torch.
"""

from workbench.audit.api.certified import certified as certified
from workbench.audit.api.checkpoint import audit_checkpoint as audit_checkpoint
from workbench.audit.api.checkpoint import audit_run as audit_run
from workbench.audit.api.mechanisms import audit as audit
from workbench.audit.api.plan import plan as plan
from workbench.audit.api.result import AuditResult as AuditResult
from workbench.audit.api.scores import audit_scores as audit_scores
from workbench.audit.api.training import audit_training as audit_training
from workbench.audit.api.training import replay as replay
