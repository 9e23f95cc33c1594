"""Moving conversations: plan and publish on one side, fetch on the other."""

from .fetch import FetchReport, fetch
from .plan import PublishPlan, plan_publish
from .preload import check_signature, preload
from .progress import SILENT, Progress
from .publish import publish_car, publish_here

__all__ = [
    "SILENT", "FetchReport", "Progress", "PublishPlan", "check_signature", "fetch", "plan_publish", "preload",
    "publish_car", "publish_here",
]  # fmt: skip
