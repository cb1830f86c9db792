// Say what a timeline shows: tokens, passes and time of a stretch, and where the draft helped.

const SUMMARY_LETTERS = 40 // of a stretch's text

function sumStretch(view, range) {
  view.range = range
  writeSums(view)
  repaint(view)
}

const plainSecondsOf = ({ baseline }) => (baseline?.tokens ? baseline.seconds / baseline.tokens : null)

function stretchOf(view, run) {
  // Whole steps that have been played, because a step's time cannot be divided among its tokens.
  const [from, to] = view.range ?? [0, Infinity]
  return run.steps.slice(0, stepsShown(view, run)).filter((step) => step.start < to && step.start + step.pieces.length > from)
}

function writeSums(view) {
  // Tokens, passes and time of the selected steps, or of the whole text.
  writeFigures(view, view.runs.flatMap((run, at) => {
    const steps = stretchOf(view, run)
    const tokens = steps.reduce((sum, step) => sum + step.pieces.length, 0)
    const seconds = steps.reduce((sum, step) => sum + secondsOf(step), 0)
    const plain = plainSecondsOf(run)
    const speed = plain && seconds ? (plain * tokens) / seconds : null
    const name = view.runs.length > 1 ? `${"AB"[at]}: ` : ""
    return [
      [tokens === 1 ? "token" : "tokens", name + tokens, false],
      [steps.length === 1 ? "target pass" : "target passes", String(steps.length), false],
      ["", milliseconds(seconds), false],
      ...(speed ? [["as fast as without the tree", `${speed.toFixed(2)}×`, speed < 1]] : []),
      ...(at === view.runs.length - 1 && view.range ? [["selected: Esc shows the whole text", "", false]] : []),
    ]
  }))
}

function writeKey(view) {
  // The colours of the phases that occur, and the meaning of the dotted line.
  const hasWaited = view.runs.some((run) => run.steps.some((step) => step.read_wait_sec > 0))
  view.el.phases.replaceChildren(...PHASES.filter((_, phase) => phase !== READ || hasWaited).map(([name, colour]) => {
    const [item, mark] = [make("span"), make("i")]
    mark.style.background = `var(--st-${colour}-color)`
    item.append(mark, name)
    return item
  }))
  const plain = [...new Set(view.runs.map(plainSecondsOf).filter(Boolean).map(milliseconds))]
  view.el["plain-key"].textContent = plain.length ? `dotted line: a token without the tree, ${plain.join(" and ")}` : ""
}

function seriesOf(steps, tokens) {
  // The longest series of passes with this number of tokens.
  let [best, series] = [[], []]
  for (const step of steps) {
    series = step.pieces.length === tokens ? [...series, step] : []
    if (series.length > best.length) best = series
  }
  return best
}

function writeSummary(view) {
  // Where the draft helped in a finished run and where it did not. A click selects the stretch.
  const steps = view.runs[0].steps.filter((step) => step.bonus !== null) // the end of the text has cut the others
  const yields = steps.map((step) => step.pieces.length)
  const [most, least] = [Math.max(...yields), Math.min(...yields)]
  view.el.summary.hidden = view.running || view.runs.length > 1 || most === least || !steps.length
  if (view.el.summary.hidden) return
  const passes = (series) => (series.length > 1 ? ` in each of ${series.length} passes` : " from one pass")
  const gain = (tokens, series) => `: ${count(tokens, "token")}${passes(series)}`
  const [helped, failed] = [most, least].map((tokens) => seriesOf(steps, tokens))
  view.el.summary.replaceChildren(
    "The draft helped most at ", stretchButton(view, helped), `${gain(most, helped)}. It helped least at `, stretchButton(view, failed),
    `${gain(least, failed)}${least === 1 ? ", as without a draft" : ""}.`,
  )
}

function stretchButton(view, steps) {
  const pieces = steps.flatMap((step) => step.pieces)
  const text = pieces.join("").trim()
  const button = make("button", `“${isolated(text.length > SUMMARY_LETTERS ? `${text.slice(0, SUMMARY_LETTERS)}…` : text || visible(pieces.join("")))}”`)
  const range = [steps[0].start, steps[0].start + pieces.length]
  const select = () => {
    sumStretch(view, range)
    moveTo(view, view.camera.x + view.width / 2 - xOf(view, (range[0] + range[1]) / 2))
  }
  Object.assign(button, { type: "button", title: "Select this stretch", onclick: select })
  return button
}
