"""The audits of the public Python API; `workbench audit`, `replay` and `plan` call the same functions.

Arguments are coerced or refused in one line that names the argument. Each function returns an `AuditResult`
(a `PlanResult`), whose `record` is the report that `--json` writes. Importing these modules imports no torch.
"""
