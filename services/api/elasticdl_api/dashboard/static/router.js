/** Which view an address leads to: `/jobs/ID/logs`. */

/**
 * One entry a view. `path` may have parameters (`:id`, `:tab?`), `load` gives a module whose default export is the
 * view's component with the props `params` and `query`, and which may export `title(params)`. `nav` puts it into the
 * navigation, `scope` shows it there to those only who have that scope.
 */
export const routes = [
  { name: "cluster", path: "/", nav: "Cluster", icon: "cluster", load: () => import("./views/cluster.js") },
  { name: "jobs", path: "/jobs", nav: "Jobs", icon: "jobs", load: () => import("./views/jobs.js") },
  { name: "stacks", path: "/jobs/:id/stacks", under: "jobs", load: () => import("./views/stacks.js") },
  { name: "job", path: "/jobs/:id/:tab?", under: "jobs", load: () => import("./views/job.js") },
  { name: "compare", path: "/compare", nav: "Compare", icon: "compare", load: () => import("./views/compare.js") },
  { name: "submit", path: "/submit", nav: "Submit", icon: "submit", scope: "submit", load: () => import("./views/submit.js") },
  { name: "sql", path: "/sql", nav: "SQL", icon: "sql", scope: "submit", load: () => import("./views/sql.js") },
  { name: "admin", path: "/admin/:part?", nav: "Admin", icon: "admin", scope: "admin", load: () => import("./views/admin.js") },
];

/** The parameters of a path, if it matches a pattern. */
export function matchPath(pattern, path) {
  const wanted = pattern.split("/").filter(Boolean);
  const given = path.split("/").filter(Boolean);
  if (given.length > wanted.length) return null;
  const params = {};
  for (const [place, part] of wanted.entries()) {
    const value = given[place];
    if (part.startsWith(":")) {
      if (value === undefined && !part.endsWith("?")) return null;
      if (value !== undefined) params[part.slice(1).replace("?", "")] = decodeURIComponent(value);
    } else if (part !== value) {
      return null;
    }
  }
  return params;
}

/** The view of a path with the path's parameters; no view if there is none. */
export function routeOf(path) {
  for (const route of routes) {
    let params;
    try {
      params = matchPath(route.path, path);
    } catch (error) {
      params = null; // a percent sign that begins nothing
    }
    if (params) return { route, params };
  }
  return { route: null, params: {} };
}
