"""Moving conversations: plan and publish on one side, fetch on the other."""

from .fetch import FetchReport, fetch
from .plan import PublishPlan, plan_publish
from .progress import SILENT, Progress
from .publish import publish_car, publish_here

__all__ = [
    "SILENT", "FetchReport", "Progress", "PublishPlan", "fetch", "plan_publish", "publish_car", "publish_here",
]  # fmt: skip
