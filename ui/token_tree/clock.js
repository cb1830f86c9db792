// Shared by all components that show trees.

const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches

const secondsOf = (step) => step.seconds.reduce((sum, part) => sum + part, 0)

function stepsBy(ends, time) {
  // Count the steps that have ended, by binary search in the sorted times.
  let [low, high] = [0, ends.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (ends[middle] <= time + 1e-12) low = middle + 1
    else high = middle
  }
  return low
}

function listKeys(list, keys) {
  list.replaceChildren(...keys.flatMap(([key, does]) => [make("dt", key), make("dd", does)]))
}

function labelPlay(button, isPlaying) {
  button.textContent = isPlaying ? "❚❚ Pause" : "▶ Play"
  button.setAttribute("aria-label", isPlaying ? "Pause" : "Play")
}

function takeKey(event) {
  // Without the second line, Streamlit would rerun the page on R.
  event.preventDefault()
  event.stopPropagation()
}

function fullScreen(view) {
  if (document.fullscreenElement) document.exitFullscreen()
  else view.el.tt.requestFullscreen()
}
