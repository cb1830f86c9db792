// On a phone the menu lies over the page: it closes when a page is chosen in it.

const PHONE = "(max-width: 768px)" // Streamlit's own bound

export default function closingMenu() {
  const close = (event) => {
    const chosen = event.target.closest?.(".st-key-menu a")
    if (chosen && window.matchMedia(PHONE).matches) document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click()
  }
  document.addEventListener("click", close)
  return () => document.removeEventListener("click", close)
}
