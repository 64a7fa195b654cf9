"""Which process a series is of: `process_*` metrics carry no name of ours, but the same target as the info metrics."""

from deploy.grafana.queries import GATEWAYS, WORKERS, series

WORKER_INFO = series("radixgate_worker_info", WORKERS)
GATEWAY_INFO = series("radixgate_gateway_info", GATEWAYS)

_SAME_TARGET = "on (namespace, job, instance)"


def of_workers(expr: str) -> str:
    """Return `expr`, which speaks of processes, for workers and by their names."""
    return f"sum by (worker) ({expr} * {_SAME_TARGET} group_left (worker) {WORKER_INFO})"


def of_gateways(expr: str) -> str:
    """Return `expr`, which speaks of processes, for gateways and by their pods or addresses."""
    return f"sum by (process) ({named_process(f'{expr} * {_SAME_TARGET} group_left () {GATEWAY_INFO}')})"


def named_process(expr: str) -> str:
    """Name the pod, or outside of Kubernetes the address, in the label `process`."""
    by_address = f'label_replace({expr}, "process", "$1", "instance", "(.+)")'
    return f'label_replace({by_address}, "process", "$1", "pod", "(.+)")'
