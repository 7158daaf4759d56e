"""A server with the whole page, and where it listens."""

from __future__ import annotations

import getpass
import logging
import socket
from typing import TYPE_CHECKING

from parc_ray.errors import InputError
from parc_ray.viewer.session import Session

if TYPE_CHECKING:
    from parc_ray.viewer.page import Page
    from parc_ray.viewer.studio import Studio

_BRAND = (45, 105, 160)


def require_viser() -> None:
    """Refuse to start without the packages of extra ``view``.

    Raises:
        InputError: viser is not installed.
    """
    try:
        import viser  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"parc view: {error.name or 'viser'} is not installed; the browser viewer needs extra "
            "'view'; run: pip install 'parc-ray[view]'"
        ) from error


def free_port(host: str, port: int) -> int:
    """``port``, or a free one for 0.

    Raises:
        InputError: the port is taken or not allowed, or there is no such address.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--host {host} --port {port}: cannot listen there ({error}); give another --port, "
            "0 for any free one"
        ) from error


def ssh_line(port: int) -> str:
    """The command that brings the page to another machine."""
    return f"ssh -L {port}:localhost:{port} {getpass.getuser()}@{socket.gethostname()}"


def open_page(
    session: Session, host: str, port: int, studio: Studio, out: str, why: str | None = None
) -> Page:
    """Serve a session with all panels; ``close`` of the page ends it.

    Args:
        session: what is shown.
        host: address to listen on.
        port: a free one.
        studio: the models that generate and track here.
        out: where edited and generated clips are kept.
        why: a clip whose failure is explained at once.
    """
    import viser

    from parc_ray.viewer.page import Page
    from parc_ray.viewer.panels.clips import ClipsPanel
    from parc_ray.viewer.panels.drive import DrivePanel
    from parc_ray.viewer.panels.edit import EditPanel
    from parc_ray.viewer.panels.labels import LabelsPanel
    from parc_ray.viewer.panels.look import LookPanel
    from parc_ray.viewer.panels.timeline import TimelinePanel
    from parc_ray.viewer.panels.why import WhyPanel
    from parc_ray.viewer.workbench import Workbench

    logging.getLogger("websockets").setLevel(logging.ERROR)
    server = viser.ViserServer(host=host, port=port, label="PARC-Ray", verbose=False)
    server.gui.configure_theme(
        control_width="large", brand_color=_BRAND, show_logo=False, show_share_button=False
    )
    server.gui.main_panel.dock_right()
    page = Page(session, server)
    TimelinePanel(page)
    tabs = server.gui.add_tab_group()
    with tabs.add_tab("Clips"):
        ClipsPanel(page)
    with tabs.add_tab("Compare"):
        LookPanel(page)
    with tabs.add_tab("Edit"):
        EditPanel(page, Workbench(studio=studio, out=out))
    with tabs.add_tab("Labels"):
        LabelsPanel(page, out)
    with tabs.add_tab("Why"):
        reasons = WhyPanel(page, studio)
    with tabs.add_tab("Drive"):
        DrivePanel(page, studio)
    page.changed()
    if why is not None:
        reasons.show(why)
    page.start()
    return page
