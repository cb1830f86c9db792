// What components that play by a clock share.

const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches

function stepsBy(ends, time) {
  // How many steps had ended: binary search in the sorted times.
  let [low, high] = [0, ends.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (ends[middle] <= time + 1e-12) low = middle + 1
    else high = middle
  }
  return low
}
