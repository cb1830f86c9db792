// What Streamlit's own page lacks: on a phone the menu closes when a page is chosen in it, and Escape keeps what was typed.

const PHONE = "(max-width: 768px)" // Streamlit's own bound

export default function closingMenu() {
  const close = (event) => {
    const chosen = event.target.closest?.(".st-key-menu a")
    if (chosen && window.matchMedia(PHONE).matches) document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click()
  }
  const keep = (event) => event.key === "Escape" && event.target.matches?.("textarea, input") && event.target.blur()
  document.addEventListener("click", close)
  document.addEventListener("keydown", keep, true) // before the popover around the field closes
  return () => {
    document.removeEventListener("click", close)
    document.removeEventListener("keydown", keep, true)
  }
}
