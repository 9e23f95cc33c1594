"""Moving conversations: plan and publish on one side, fetch on the other."""

from .card import check_signature
from .fetch import FetchReport, fetch, fetch_several
from .plan import PublishPlan, plan_publish
from .preload import preload
from .progress import SILENT, Progress
from .publish import publish_car, publish_here

__all__ = [
    "SILENT", "FetchReport", "Progress", "PublishPlan", "check_signature", "fetch", "fetch_several", "plan_publish",
    "preload", "publish_car", "publish_here",
]  # fmt: skip
