// Steps that a busy server dropped are requested again.

const ASK_AGAIN_MS = 500
const MOST_REQUESTS = 12 // for the same step

function request(view, have) {
  // Request a lost step twice a second, but not forever, because the server may no longer have it. It always has the shapes.
  // Messages that arrive in the meantime do not repeat the request.
  const name = `${view.wanted}:${have}`
  if (view.asking === name) return
  view.asked[name] = (view.asked[name] || 0) + 1
  if (view.epoch === view.wanted && view.asked[name] > MOST_REQUESTS) return
  view.asking = name
  clearTimeout(view.again)
  setTimeout(() => view.ask(have), 0)
  view.again = setTimeout(() => {
    view.asking = null
    if (view.epoch !== view.wanted || view.steps.length === have || view.steps[have]?.lean) request(view, have)
  }, ASK_AGAIN_MS)
}
