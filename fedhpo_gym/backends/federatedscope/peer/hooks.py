"""FederatedScope's server with a course's hooks around what it does."""

from __future__ import annotations

import importlib
from typing import Any

from fedhpo_gym.backends.federatedscope.peer import control


def hooked(base: Any, course: Any) -> Any:
    """Return a class of servers that tells a course (see `course.Course`) what happens."""

    class Server(base):  # type: ignore[misc]  # its type is known in that interpreter only
        def eval(self) -> None:
            if course.wants(self.state):
                super().eval()

        def broadcast_model_para(self, *args: Any, **words: Any) -> Any:
            if (args[0] if args else words.get("msg_type", "model_para")) == "model_para":
                course.stand(self.state)
            return super().broadcast_model_para(*args, **words)

        def callback_funcs_model_para(self, message: Any) -> Any:
            course.hear(message.sender, message.content)
            return super().callback_funcs_model_para(message)

        def merge_eval_results_from_all_clients(self) -> Any:
            buffer = self.msg_buffer["eval"]
            course.report(self.state, buffer[max(buffer)])
            return super().merge_eval_results_from_all_clients()

    return Server


def hooked_client(base: Any, course: Any) -> Any:
    """Return a class of clients that are measured before and after they train."""

    class Client(base):  # type: ignore[misc]  # likewise
        def callback_funcs_for_model_para(self, message: Any) -> Any:
            dropout = getattr(self._cfg.model, "dropout", None)
            if hasattr(self.trainer.ctx.model, "dropout"):  # read for good when it was made
                self.trainer.ctx.model.dropout = dropout

            def received() -> Any:
                self.trainer.update(message.content)
                return control.metrics_of(self)

            course.measure(self.ID, "before", received)
            found = super().callback_funcs_for_model_para(message)
            course.measure(self.ID, "after", lambda: control.metrics_of(self))
            return found

    return Client


def module(name: str) -> Any:
    """Return a module of FederatedScope's `core.auxiliaries`."""
    return importlib.import_module(f"federatedscope.core.auxiliaries.{name}")
