// Additions to Streamlit's page: on a phone, choosing a page closes the menu, Escape does not discard typed text, typed
// text reaches the server after a pause, so that reloading the page does not lose it, and a link that is clicked with Ctrl
// or the middle button opens in a new tab: Streamlit opens it here, and leaves the first page's address empty.

const PAUSE_MS = 700
const CLICKS = ["click", "auxclick", "contextmenu"]
const PHONE = "(max-width: 768px)" // Streamlit's breakpoint

export default function closingMenu() {
  const close = (event) => {
    const chosen = event.target.closest?.(".st-key-menu a")
    if (chosen && window.matchMedia(PHONE).matches) document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click()
  }
  const keep = (event) => event.key === "Escape" && event.target.matches?.("textarea, input") && event.target.blur()
  let pause
  const submit = (event) => {
    const field = event.target
    clearTimeout(pause)
    if (!field.matches?.("textarea") || field.closest("[data-testid=stForm], [data-testid=stChatInput]")) return
    const enter = () => new KeyboardEvent("keydown", {key: "Enter", code: "Enter", keyCode: 13, ctrlKey: true, bubbles: true})
    pause = setTimeout(() => field.dispatchEvent(enter()), PAUSE_MS)
  }
  const follow = (event) => {
    const link = event.target.closest?.("[data-testid=stPageLink-NavLink]")
    if (link?.getAttribute("href") === "") link.setAttribute("href", "./")
    if (link && (event.ctrlKey || event.metaKey || event.shiftKey)) event.stopPropagation()
  }
  document.addEventListener("click", close)
  for (const click of CLICKS) document.addEventListener(click, follow, true) // before Streamlit follows the link
  document.addEventListener("input", submit)
  document.addEventListener("keydown", keep, true) // before the popover around the field closes
  return () => {
    clearTimeout(pause)
    document.removeEventListener("click", close)
    for (const click of CLICKS) document.removeEventListener(click, follow, true)
    document.removeEventListener("input", submit)
    document.removeEventListener("keydown", keep, true)
  }
}
