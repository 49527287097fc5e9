"""What a plan names beside the server under test: read, or asked, before anything is started."""

from fidelity.plan import RunPlan
from fidelity.plan_reference import is_url


def check_inputs(plan: RunPlan) -> None:
    """Raises FidelityError for a broken line of questions, for a reference that cannot be read or does not
    answer, and where none could be saved."""
    if "tasks" in plan.selected:
        from fidelity.probes.tasks import questions

        questions(plan)
    if plan.save_reference is not None:
        from fidelity.reference import check_writable

        check_writable(plan.save_reference)
    if plan.reference is None or "reference" not in plan.selected:
        return
    if is_url(plan.reference):
        from fidelity.servers.trusted import reference_server

        with reference_server(plan):
            return
    from fidelity.reference import load

    load(plan.reference)
