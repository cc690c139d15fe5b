"""Linear interpolation over scattered points in the plane: a Delaunay triangulation by incremental insertion."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
_Triangle = tuple[int, int, int]


class Triangulation:
    """Triangles over the points, so that a value can be interpolated between the three corners around it.

    Args:
        points: at least three that are not on one line.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = list(dict.fromkeys(points))
        count = len(self._points)
        # Corners far outside, a little off the axes; points a little off the grid, so that no four are on a circle.
        far = 1e4 * (1.0 + max(abs(c) for p in self._points for c in p))
        jitter = 1e-7
        self._at = [
            (x + jitter * ((i * 7919) % 101), y + jitter * ((i * 104729) % 103))
            for i, (x, y) in enumerate(self._points)
        ]
        self._at += [(-far, -far * 1.1), (far * 1.2, -far), (-far * 0.3, far * 1.3)]
        triangles: set[_Triangle] = {(count, count + 1, count + 2)}
        for index in range(count):
            self._insert(triangles, index)
        self._triangles = [t for t in sorted(triangles) if max(t) < count]

    def _insert(self, triangles: set[_Triangle], index: int) -> None:
        bad = [t for t in triangles if self._in_circle(t, self._at[index])]
        edges: dict[tuple[int, int], int] = {}
        for a, b, c in bad:
            for edge in ((a, b), (b, c), (c, a)):
                key = (min(edge), max(edge))
                edges[key] = edges.get(key, 0) + 1
        triangles.difference_update(bad)
        for (a, b), times in edges.items():
            if times == 1:
                low, middle, high = sorted((a, b, index))
                triangles.add((low, middle, high))

    def _in_circle(self, triangle: _Triangle, point: Point) -> bool:
        (ax, ay), (bx, by), (cx, cy) = (self._at[i] for i in triangle)
        px, py = point
        ax, ay, bx, by, cx, cy = ax - px, ay - py, bx - px, by - py, cx - px, cy - py
        determinant = (
            (ax * ax + ay * ay) * (bx * cy - cx * by)
            - (bx * bx + by * by) * (ax * cy - cx * ay)
            + (cx * cx + cy * cy) * (ax * by - bx * ay)
        )
        orientation = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        return determinant * orientation > 0

    def weights(self, point: Point) -> list[tuple[Point, float]]:
        """The points whose values make up the value at ``point``, with their weights.

        Outside of all triangles it is the nearest point alone.
        """
        for triangle in self._triangles:
            (ax, ay), (bx, by), (cx, cy) = (self._points[i] for i in triangle)
            area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
            if abs(area) < 1e-9:
                continue
            u = ((bx - point[0]) * (cy - point[1]) - (by - point[1]) * (cx - point[0])) / area
            v = ((cx - point[0]) * (ay - point[1]) - (cy - point[1]) * (ax - point[0])) / area
            w = 1.0 - u - v
            if min(u, v, w) >= -1e-9:
                corners = [self._points[i] for i in triangle]
                return list(zip(corners, (u, v, w), strict=True))
        nearest = min(self._points, key=lambda p: ((p[0] - point[0]) ** 2 + (p[1] - point[1]) ** 2, p))
        return [(nearest, 1.0)]
