// Runs before anything is painted, and is no module: those run too late for that. It applies the stored choice of
// colours, asks for what the first view shows first, and has all modules that it needs loaded at once: by the time they
// run the answer is there (`early` in api.js). In that order: a browser asks a server for six things at a time, and the
// answer takes longer than any module.
(function () {
  var about = document.currentScript;
  try {
    var chosen = localStorage.getItem("elasticdl.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) {
    // Storage is forbidden: the system's choice stands.
  }
  var parts = location.hash.replace(/^#\/?/, "").split("?");
  var path = parts[0].split("/").filter(Boolean);
  var view = path[0] || "cluster";
  if (view === "jobs" && path.length > 1) view = path[2] === "stacks" ? "stacks" : "job";
  var first = {
    cluster: ["/cluster", "/scheduler/plan"],
    jobs: parts.length === 1 ? ["/jobs?sort=-created_at&view=summary&total=true&limit=50"] : [],
    job: ["/jobs/" + path[1]],
  };
  var early = new Map();
  if (about.dataset.session === "sent") {
    (first[view] || []).concat(["/session"]).forEach(function (address) {
      var asked = fetch("/v1" + address, { headers: { Accept: "application/json" }, credentials: "same-origin", priority: "high" });
      asked.catch(function () {}); // whoever takes it is told
      early.set("/v1" + address, asked);
    });
  }
  window.elasticdlEarly = early;
  var modules = JSON.parse(about.dataset.views);
  modules[""].concat(modules[view] || []).forEach(function (name) {
    var link = document.createElement("link");
    link.rel = "modulepreload";
    link.href = about.dataset.base + "/" + name;
    document.head.append(link);
  });
})();
