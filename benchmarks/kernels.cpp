// The loops of elasticdl_ps.kernels in C++, as one would write them there, to compare with.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __SSE__
#include <immintrin.h>
#endif

static constexpr int kAhead = 12;
static constexpr int kUpdateAhead = 8;
static constexpr int kWords = 16, kSlots = 12;  // of a line of the map

static inline uint64_t hash_id(int64_t key) {
  uint64_t x = static_cast<uint64_t>(key);
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  x ^= x >> 31;
  return x;
}

// Which of a line's slots have a tag.
static inline uint32_t equal_tags(const uint32_t* line, uint64_t tag) {
#ifdef __SSE2__
  const __m128i tags = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + kSlots));
  const __m128i wanted = _mm_set1_epi8(static_cast<char>(tag));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(tags, wanted)) & ((1 << kSlots) - 1);
#else
  const uint8_t* tags = reinterpret_cast<const uint8_t*>(line + kSlots);
  uint32_t found = 0;
  for (int slot = 0; slot < kSlots; slot++) found |= (tags[slot] == static_cast<uint8_t>(tag)) << slot;
  return found;
#endif
}

static inline void prefetch_row(const float* row, int64_t width) {
  const char* at = reinterpret_cast<const char*>(row);
  for (int64_t line = 0; line < width * 4; line += 64) __builtin_prefetch(at + line);
}

extern "C" {

void find(const uint32_t* map, const uint64_t* shape, const int64_t* keys, const int64_t* query, int64_t n,
          int64_t* out) {
  const uint64_t before = shape[0], after = shape[1], grown_from = shape[2];
  const auto line_of = [=](uint64_t code) {
    const uint64_t low = code & 0xFFFFFFFF;
    return map + (low * (low >= grown_from ? after : before) >> 32) * kWords;
  };
  // Until a row is known its place has the hash of the id.
  const auto ask_line = [=](int64_t i) {
    const uint64_t code = hash_id(query[i]);
    out[i] = static_cast<int64_t>(code);
    __builtin_prefetch(line_of(code));
  };
  for (int64_t i = 0; i < n && i < 2 * kAhead; i++) ask_line(i);
  for (int64_t i = 0; i < n; i++) {
    if (i + 2 * kAhead < n) ask_line(i + 2 * kAhead);
    if (i + kAhead < n) {
      const uint64_t code = static_cast<uint64_t>(out[i + kAhead]);
      const uint32_t* line = line_of(code);
      uint32_t found = equal_tags(line, code >> 32);
      if (!found) {
        line += kWords;
        found = equal_tags(line, code >> 32) | 1u << (kSlots - 1);
      }
      __builtin_prefetch(keys + line[__builtin_ctz(found)] - 1);
    }
    const int64_t key = query[i];
    const uint64_t code = static_cast<uint64_t>(out[i]);
    const uint32_t* line = line_of(code);
    int64_t row = -1;
    while (true) {
      for (uint32_t found = equal_tags(line, code >> 32); found; found &= found - 1) {
        const int64_t candidate = static_cast<int64_t>(line[__builtin_ctz(found)]) - 1;
        if (candidate >= 0 && keys[candidate] == key) {
          row = candidate;
          break;
        }
      }
      if (row >= 0 || !line[kSlots - 1]) break;
      line += kWords;
    }
    out[i] = row;
  }
}

void gather(const float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, float* out) {
  for (int64_t i = 0; i < n; i++) {
    if (i + kAhead < n) prefetch_row(arena + rows[i + kAhead] * stride, dim);
    std::memcpy(out + i * dim, arena + rows[i] * stride, dim * sizeof(float));
  }
}

void sgd(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, const float* grads, const float* h) {
  const float scale = h[0], lr = h[1], decay = h[2];
  for (int64_t i = 0; i < n; i++) {
    if (i + kUpdateAhead < n) prefetch_row(arena + rows[i + kUpdateAhead] * stride, dim);
    float* __restrict w = arena + rows[i] * stride;
    const float* __restrict g = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) w[j] = (w[j] - w[j] * decay * lr) - g[j] * scale * lr;
  }
}

void adagrad(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, const float* grads,
             const float* h) {
  const float scale = h[0], lr = h[1], decay = h[2], epsilon = h[3];
  for (int64_t i = 0; i < n; i++) {
    if (i + kUpdateAhead < n) prefetch_row(arena + rows[i + kUpdateAhead] * stride, 2 * dim);
    float* __restrict w = arena + rows[i] * stride;
    float* __restrict a = w + dim;
    const float* __restrict gradient = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) {
      const float g = gradient[j] * scale;
      a[j] += g * g;
      w[j] = (w[j] - w[j] * decay * lr) - lr * g / std::sqrt(a[j] + epsilon);
    }
  }
}

void adam(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, const float* grads,
          const float* h) {
  const float scale = h[0], lr = h[1], decay = h[2], rest_1 = h[3], rest_2 = h[4], epsilon = h[5], alpha = h[6];
  for (int64_t i = 0; i < n; i++) {
    if (i + kUpdateAhead < n) prefetch_row(arena + rows[i + kUpdateAhead] * stride, 3 * dim);
    float* __restrict w = arena + rows[i] * stride;
    float* __restrict m = w + dim;
    float* __restrict v = w + 2 * dim;
    const float* __restrict gradient = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) {
      const float g = gradient[j] * scale;
      m[j] += (g - m[j]) * rest_1;
      v[j] += (g * g - v[j]) * rest_2;
      w[j] = (w[j] - w[j] * decay * lr) - m[j] * alpha / (std::sqrt(v[j]) + epsilon);
    }
  }
}

void torch_momentum(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, const float* grads,
                    const float* h) {
  const float scale = h[0], lr = h[1], decay = h[2], mu = h[3], rest = h[4];
  const bool nesterov = h[5] != 0;
  for (int64_t i = 0; i < n; i++) {
    if (i + kUpdateAhead < n) prefetch_row(arena + rows[i + kUpdateAhead] * stride, 2 * dim);
    float* __restrict w = arena + rows[i] * stride;
    float* __restrict m = w + dim;
    const float* __restrict gradient = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) {
      const float g = gradient[j] * scale + w[j] * decay;
      m[j] = m[j] == m[j] ? m[j] * mu + g * rest : g;
      w[j] -= (nesterov ? g + m[j] * mu : m[j]) * lr;
    }
  }
}

void torch_adagrad(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, const float* grads,
                   const float* h) {
  const float scale = h[0], decay = h[2], epsilon = h[3], step_size = h[4];
  for (int64_t i = 0; i < n; i++) {
    if (i + kUpdateAhead < n) prefetch_row(arena + rows[i + kUpdateAhead] * stride, 2 * dim);
    float* __restrict w = arena + rows[i] * stride;
    float* __restrict a = w + dim;
    const float* __restrict gradient = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) {
      const float g = gradient[j] * scale + w[j] * decay;
      a[j] += g * g;
      w[j] -= g / (std::sqrt(a[j]) + epsilon) * step_size;
    }
  }
}

void torch_adam(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t dim, const float* grads,
                const float* h) {
  const float scale = h[0], decay = h[2], kept = h[3], rest_1 = h[4], beta_2 = h[5], rest_2 = h[6], epsilon = h[7];
  const float step_size = h[8], root_2 = h[9];
  for (int64_t i = 0; i < n; i++) {
    if (i + kUpdateAhead < n) prefetch_row(arena + rows[i + kUpdateAhead] * stride, 3 * dim);
    float* __restrict w = arena + rows[i] * stride;
    float* __restrict m = w + dim;
    float* __restrict v = w + 2 * dim;
    const float* __restrict gradient = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) {
      const float g = gradient[j] * scale + w[j] * decay;
      m[j] += (g - m[j]) * rest_1;
      v[j] = v[j] * beta_2 + g * g * rest_2;
      w[j] = w[j] * kept - m[j] / (std::sqrt(v[j]) / root_2 + epsilon) * step_size;
    }
  }
}

int64_t merge(const int64_t* ids, const float* values, int64_t n, int64_t dim, int64_t* out_ids, float* out_values) {
  uint64_t size = 16;
  while (size < 2 * static_cast<uint64_t>(n)) size *= 2;
  std::vector<uint32_t> seen(size, 0);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i + 2 * kAhead < n) __builtin_prefetch(seen.data() + (hash_id(ids[i + 2 * kAhead]) & (size - 1)));
    uint64_t at = hash_id(ids[i]) & (size - 1);
    while (seen[at] && out_ids[seen[at] - 1] != ids[i]) at = (at + 1) & (size - 1);
    if (!seen[at]) {
      out_ids[count] = ids[i];
      std::memcpy(out_values + count * dim, values + i * dim, dim * sizeof(float));
      seen[at] = static_cast<uint32_t>(++count);
    } else {
      float* __restrict sum = out_values + (seen[at] - 1) * dim;
      const float* __restrict value = values + i * dim;
      for (int64_t j = 0; j < dim; j++) sum[j] += value[j];
    }
  }
  return count;
}

// The least that a kernel must do: move whole random rows, in several ways of which the fastest counts as the limit.

float read_rows(const float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t width, int64_t ahead) {
  float total = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i + ahead < n) prefetch_row(arena + rows[i + ahead] * stride, width);
    const float* row = arena + rows[i] * stride;
    for (int64_t j = 0; j < width; j += 16) total += row[j];
  }
  return total;
}

void move_rows(const float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t width, int64_t ahead,
               float* out) {
  for (int64_t i = 0; i < n; i++) {
    if (i + ahead < n) prefetch_row(arena + rows[i + ahead] * stride, width);
    std::memcpy(out + i * width, arena + rows[i] * stride, width * sizeof(float));
  }
}

#ifdef __SSE__
// Past the cache: out and width are multiples of 64 bytes.
void stream_rows(const float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t width, int64_t ahead,
                 float* out) {
  for (int64_t i = 0; i < n; i++) {
    if (i + ahead < n) prefetch_row(arena + rows[i + ahead] * stride, width);
    const float* row = arena + rows[i] * stride;
    for (int64_t j = 0; j < width; j += 4) _mm_stream_ps(out + i * width + j, _mm_loadu_ps(row + j));
  }
  _mm_sfence();
}
#else
void stream_rows(const float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t width, int64_t ahead,
                 float* out) {
  move_rows(arena, stride, rows, n, width, ahead, out);
}
#endif

void change_rows(float* arena, int64_t stride, const int64_t* rows, int64_t n, int64_t width, int64_t dim,
                 const float* grads, int64_t ahead) {
  for (int64_t i = 0; i < n; i++) {
    if (i + ahead < n) prefetch_row(arena + rows[i + ahead] * stride, width);
    float* __restrict row = arena + rows[i] * stride;
    const float* __restrict gradient = grads + i * dim;
    for (int64_t j = 0; j < dim; j++) row[j] += gradient[j];
    for (int64_t j = dim; j < width; j++) row[j] += 1.0f;
  }
}
}
