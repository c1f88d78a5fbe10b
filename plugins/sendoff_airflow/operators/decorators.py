"""The decorator ``@task.audience``: a function returns the recipients, and the task freezes the launch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from sendoff_airflow.operators.audience import BuildAudienceOperator

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder


class _AudienceDecoratedOperator(DecoratedOperator, BuildAudienceOperator):
    """Freeze the launch of a run, with the recipients that a function returns."""

    template_fields: Sequence[str] = ("op_args", "op_kwargs", *BuildAudienceOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    custom_operator_name = "@task.audience"
    _context: Context | None = None

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("audience") is not None:
            raise ValueError("@task.audience needs no audience: the function returns it.")
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **{**kwargs, "multiple_outputs": False},
        )

    @property
    def _is_in_folder(self) -> bool:
        return False

    def _recipients(self) -> str:
        return f"{self.python_callable.__qualname__} {self.op_args!r} {self.op_kwargs!r}"

    def execute(self, context: Context) -> str:  # type: ignore[override]
        """Find the launch of this run's period, or call the function and create the launch."""
        self._context = context
        key: str = super().execute(context)["launch_key"]
        context["ti"].xcom_push("launch_key", key)
        return key

    def _with_audience(self, folder: CampaignFolder) -> CampaignFolder:
        """Return a campaign with the audience that the function returns."""
        assert self._context is not None
        arguments = self.determine_kwargs({**self._context, **self.op_kwargs})
        self.audience = self.python_callable(*self.op_args, **arguments)
        return super()._with_audience(folder)


def audience_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Turn a function that returns recipients into a task that freezes a launch: ``@task.audience(campaign=...)``.

    The function returns SQL, a path, a DataFrame, an Arrow table, a list of dictionaries or
    ``VerdictsOfLaunch(key)``. Its arguments are those of any function with ``@task``. It is called only if the ledger
    does not have the launch of the run's period yet. The result of the task is the key of the launch. The recipients
    themselves never become an XCom.

    ``kwargs``: the arguments of BuildAudienceOperator, except ``audience``, and those of any task.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=_AudienceDecoratedOperator, **kwargs
    )
