// vl-convert bundles this file with vegaEmbed.
const options = { actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true } };

function draw(plot) {
  if (plot.dataset.drawn) return;
  plot.dataset.drawn = "yes";
  const spec = JSON.parse(plot.querySelector("script").textContent);
  vegaEmbed(plot.querySelector(".canvas"), spec, options).catch((error) => {
    plot.querySelector(".canvas").textContent = `This chart could not be drawn (${error.message}); its numbers are below.`;
  });
}

// A page of many charts opens at once when each is drawn as it comes near.
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "800px" },
);
const plots = document.querySelectorAll(".plot");
plots.forEach((plot) => near.observe(plot));
addEventListener("beforeprint", () => plots.forEach(draw));

function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const closed = target && target.closest("details:not([open])");
  if (!closed) return;
  closed.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();
