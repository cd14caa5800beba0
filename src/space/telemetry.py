"""Logging of our processes: one JSON object a line on standard error, or readable text on a terminal.

An event is past tense, facts are keys: `log.info("sandbox_booted", sandbox=id, boot_ms=ms)`.
"""

import logging
import sys
from typing import cast

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(process: str, level: str) -> None:
    """Set up logging for a whole process; `level` is one of LEVELS. Called once, at the start of `main()`."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def logger() -> structlog.typing.FilteringBoundLogger:
    """Return the process's logger."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger())
