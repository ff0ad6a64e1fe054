"""Prefect's pages in Chromium, as a person uses them; the selectors are those of Prefect 3.8."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

LOAD_MS = 60_000


def open_form(page: Page, server: str, deployment: str) -> None:
    """From the list of deployments to the form of a custom run, by clicks."""
    page.goto(f"{server}/deployments")
    page.locator("a[href*='/deployments/deployment/']").get_by_text(deployment, exact=True).click(timeout=LOAD_MS)
    page.get_by_role("button", name="Run", exact=True).click(timeout=LOAD_MS)
    page.get_by_text("Custom run").click()
    field(page, "study").wait_for(timeout=LOAD_MS)


def field(page: Page, name: str) -> Locator:
    """A parameter with its label, help and input."""
    label = page.locator(".schema-form-property__label", has_text=f"{name} (Optional)")
    return page.locator(".schema-form-property").filter(has=label).last


def choose(page: Page, name: str, option: str) -> None:
    """Pick from a drop-down."""
    field(page, name).locator(".p-select-button__control").focus()
    page.keyboard.press("Space")
    page.locator(".p-select-option").get_by_text(option, exact=True).click()


def fill_number(page: Page, name: str, value: int) -> None:
    """Fill in a number that may be left out."""
    whole = field(page, name)
    whole.get_by_role("button", name="int").click()
    whole.locator("input").fill(str(value))


def fill_json(page: Page, name: str, text: str) -> None:
    """Fill in an object."""
    field(page, name).locator("textarea").fill(text)


def submit(page: Page) -> None:
    page.get_by_role("button", name="Submit").click()


def open_flow_run(page: Page, server: str, flow_run: str) -> None:
    page.goto(f"{server}/runs/flow-run/{flow_run}")
    page.get_by_text("Task Runs", exact=True).first.wait_for(timeout=LOAD_MS)


def open_tab(page: Page, name: str) -> None:
    page.get_by_text(name, exact=True).first.click()


def cancel(page: Page) -> None:
    """The button of a running flow run, and its confirmation."""
    page.get_by_role("button", name="Cancel").first.click(timeout=LOAD_MS)
    page.get_by_role("button", name="Confirm").click()


def switch_on_schedule(page: Page, server: str, deployment_id: str, name: str) -> None:
    """The toggle beside the schedule on the deployment's page."""
    page.goto(f"{server}/deployments/deployment/{deployment_id}")
    card = page.locator(".deployment-schedule-card").filter(has_text=name)
    card.locator(".p-toggle__control").click(timeout=LOAD_MS)
