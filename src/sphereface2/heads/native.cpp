// The passes over blocks of classes, each as one call: products, maps, gradients and update of a
// block while it is in the cache of a core. `native.py` writes the head's map in place of MAP, and
// says whether its loss is BINARY or a softmax.
//
// A block has the layout of the engine: class by row, C×B. Threads take parts of the blocks, the
// next one as soon as they are free; what a part adds up is its own, and the parts are added in
// their order, so that the number of threads changes no bit.

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace {

using I = int64_t;

// Registers: V numbers each, and MOST rows of two of them hold the sums of a product.
#if defined(__AVX512F__)
constexpr int V = 16, MOST = 14;
#else
constexpr int V = 8, MOST = 6;
#endif
typedef float vec __attribute__((vector_size(4 * V), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * V), aligned(4), may_alias));

constexpr int TILE = 2 * V;  // columns that a tile of a product has
constexpr float LOWEST = -1e30f;  // see the engine

inline vec load(const float* at) { return *(const vec*)at; }
inline ints load(const int32_t* at) { return *(const ints*)at; }
inline void store(float* at, vec value) { *(vec*)at = value; }
inline vec all(float value) { return value - vec{}; }
inline vec larger(vec a, vec b) { return a > b ? a : b; }
inline vec smaller(vec a, vec b) { return a < b ? a : b; }
inline vec power(vec base, float exponent) {
  for (int i = 0; i < V; i++) base[i] = std::pow(base[i], exponent);
  return base;
}
inline float add(vec values) {
  float sum = 0.0f;
  for (int i = 0; i < V; i++) sum += values[i];
  return sum;
}

// exp to two units of the last place: 2^n·exp(r), |r| <= log(2)/2, by a polynomial (Cephes).
inline vec exp_of(vec x) {
  x = smaller(larger(x, all(-87.0f)), all(88.0f));
  const float shift = 12582912.0f;  // 1.5·2^23: a sum with it is rounded to a whole number
  const vec shifted = x * 1.44269504088896341f + shift, n = shifted - shift;
  const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return (vec)((ints)p + ((ints)shifted << 23));
}

// MAP

// The sum of products a(i, k)·b(k, j) of M rows i and TILE columns j, in registers; `done` takes
// row i, vector j of it, and the values.
template <int M, class Done>
inline __attribute__((always_inline)) void tile(
    I K, const float* a, I row, I next, const float* b, I stride, const Done& done) {
  vec sum[M][2];
  for (int i = 0; i < M; i++) sum[i][0] = sum[i][1] = vec{};
  for (I k = 0; k < K; k++) {
    const vec left = load(b + k * stride), right = load(b + k * stride + V);
#pragma GCC unroll 16
    for (int i = 0; i < M; i++) {
      const vec value = all(a[i * row + k * next]);
      sum[i][0] += value * left;
      sum[i][1] += value * right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; i++) {
    done(i, 0, sum[i][0]);
    done(i, V, sum[i][1]);
  }
}

// The same for any number of rows, in as few tiles as it takes.
template <int M = MOST, class Done>
inline void tiles(
    int rows, I K, const float* a, I row, I next, const float* b, I stride, const Done& done,
    int from = 0) {
  for (; rows - from >= M; from += M)
    tile<M>(K, a + from * row, row, next, b, stride,
            [&](int i, int j, vec v) __attribute__((always_inline)) { done(from + i, j, v); });
  constexpr int SMALLER = M > 12 ? 12 : M > 8 ? 8 : M > 4 ? 4 : M > 2 ? 2 : 1;
  if constexpr (M > 1)
    if (from < rows) tiles<SMALLER>(rows, K, a, row, next, b, stride, done, from);
}

struct Arguments {
  // of the classes: weights, momentum or gradient, bias (null: none), dL/db of each (null: none)
  float *weight, *moved, *bias, *bias_gradient;
  // of the rows, padded to whole tiles: embeddings as tiles of rows and of numbers, target's
  // gradient, the softmax's largest logit and share, and the target's logit for the log
  const float *x_rows, *x_numbers, *target_gradient, *top, *share, *target_logit;
  const int64_t* label;
  const float* const* row_values;  // of the map
  const float* scalars;            // of the map
  // results of each part: gradient of the embeddings, largest logits and sums of exp; and numbers
  float *embeddings, *highest, *total;
  double* numbers;
  float* kept;         // products of the first classes, of the first pass for the second
  const int64_t* cuts;  // where parts begin and end, in blocks
  I parts, classes, rows, padded, dim, block, kept_classes, bias_stride;
  I unit_weights, moves_weights, needs_embeddings, needs_weight, statistics;
  double factor, unit, rate, momentum, decay;
};

struct Numbers {  // of a part
  double loss = 0, bias = 0, cosine = 0, active = 0;
};

// log(1+e) over many: the product less one, since log1p takes as long as dozens of exps.
struct Logarithms {
  vec product = {}, above = {};
  int count = 0;
  double sum = 0;
  void add(vec logit, vec small) {
    above += larger(logit, vec{});
    product += small * (product + 1.0f);
  }
  void note(int added) {
    if ((count += added) > 60) flush();  // of up to 2 each
  }
  void flush() {
    for (int i = 0; i < V; i++) sum += std::log1p(product[i]) + above[i];
    product = above = vec{};
    count = 0;
  }
};

struct Block {
  const Arguments& a;
  I start, count;
  std::vector<float>& scratch;  // of the thread
  float *products, *inverse, *along;
  std::vector<int32_t> place;  // of each row's target in the block; -1: none, -2: not a row
  std::vector<char> has_target;

  Block(const Arguments& a, std::vector<float>& scratch)
      : a(a), scratch(scratch), place(a.padded), has_target(a.block) {
    scratch.resize(a.block * (a.padded + 2) + V);
    inverse = scratch.data();
    along = inverse + a.block;
    products = along + a.block;
  }

  void begin(I number) {
    start = number * a.block;
    count = std::min(a.block, a.classes - start);
    std::fill(has_target.begin(), has_target.end(), 0);
    for (I b = 0; b < a.padded; b++) {
      const I at = b < a.rows ? a.label[b] - start : -1;
      const bool is_here = b < a.rows && at >= 0 && at < count;
      place[b] = is_here ? int32_t(at) : b < a.rows ? -1 : -2;
      if (is_here) has_target[at] = 1;
    }
    for (I c = 0; c < count; c++) {
      inverse[c] = 1.0f;
      if (!a.unit_weights) continue;
      vec sum[4] = {};
      const float* w = a.weight + (start + c) * a.dim;
      for (I d = 0; d < a.dim; d += TILE) {
        const vec left = load(w + d), right = load(w + d + V);
        sum[d / TILE % 2] += left * left;
        sum[2 + d / TILE % 2] += right * right;
      }
      const float norm = std::sqrt(add(sum[0] + sum[1] + sum[2] + sum[3]));
      inverse[c] = norm > 1e-12f ? 1.0f / norm : 0.0f;
    }
  }

  // Products with the rows: C×D · D×B.
  void multiply() {
    for (I c = 0; c < count; c += MOST)
      for (I b = 0; b < a.padded; b += TILE) {
        float* out = products + c * a.padded + b;
        tiles(std::min<I>(MOST, count - c), a.dim, a.weight + (start + c) * a.dim, a.dim, 1,
                a.x_rows + b * a.dim, TILE,
                [&](int i, int j, vec v) { store(out + i * a.padded + j, v); });
      }
  }

  bool is_kept() const { return start + count <= a.kept_classes; }
  float* kept() const { return a.kept + start * a.padded; }

  // Every logit of the block: each(c, b, is_excluded, cosine, logit, slope).
  template <class Each, class After>
  void map(const float* from, const Each& each, const After& after) {
    const Map other_logit(a.row_values, a.scalars);
    for (I c = 0; c < count; c++) {
      const float scale = inverse[c];
      const float bias = a.bias ? a.bias[(start + c) * a.bias_stride] : 0.0f;
      const auto one = [&](I b, auto has_excluded) __attribute__((always_inline)) {
        const vec cosine = load(from + c * a.padded + b) * scale;
        vec logit, slope;
        other_logit(cosine, b, logit, slope);
        ints excluded = {};
        if (has_excluded) {
          const ints at = load(place.data() + b);
          excluded = (at == int32_t(c)) | (at == -2);
        }
        each(c, b, has_excluded, excluded, cosine, logit + bias, slope);
      };
      I b = 0;
      if (!has_target[c])
        for (; b + V <= a.rows; b += V) one(b, std::false_type());
      for (; b < a.padded; b += V) one(b, std::true_type());
      after(c);
    }
  }

  // dL/dlogit of each other logit by `gradient`; products become dL/dproduct.
  template <class Gradient, class After>
  void differentiate(const float* from, const Gradient& gradient, const After& after) {
    vec along_c = {}, bias_c = {};
    map(from,
        [&](I c, I b, auto has_excluded, ints excluded, vec cosine, vec logit, vec slope)
            __attribute__((always_inline)) {
          vec g = gradient(b, has_excluded, excluded, cosine, logit);
          if (has_excluded) g = excluded ? vec{} : g;
          bias_c += g;
          g *= slope;
          if (has_excluded) g = excluded ? load(a.target_gradient + b) : g;
          along_c += cosine * g;
          store(products + c * a.padded + b, g * inverse[c]);
        },
        [&](I c) {
          along[c] = a.unit_weights ? add(along_c) * inverse[c] * inverse[c] : 0.0f;
          after(c, add(bias_c));
          along_c = bias_c = vec{};
        });
  }

  void take_bias(I c, float value, Numbers& sums) {
    if (a.bias_gradient) a.bias_gradient[start + c] += value;
    sums.bias += value;
  }

  // dL/dX of the part: B×C · C×D, written by its first block and added to by the others.
  void embeddings(float* out, bool is_first) {
    for (I d = 0; d < a.dim; d += TILE)
      for (I b = 0; b < a.rows; b += MOST) {
        float* at = out + b * a.dim + d;
        tiles(std::min<I>(MOST, a.rows - b), count, products + b, 1, a.padded,
                a.weight + start * a.dim + d, a.dim, [&](int i, int j, vec v) {
                  float* o = at + i * a.dim + j;
                  store(o, is_first ? v : load(o) + v);
                });
      }
  }

  // dL/dW: C×B · B×D, as a gradient or as a step of SGD with momentum; never written down then.
  void weights() {
    const float unit = a.unit, rate = a.rate, momentum = a.momentum;
    for (I c = 0; c < count; c += MOST)
      for (I d = 0; d < a.dim; d += TILE) {
        const int m = std::min<I>(MOST, count - c);
        float* w = a.weight + (start + c) * a.dim + d;
        float* out = a.moved + (start + c) * a.dim + d;
        for (int i = 0; i < m; i++) {
          __builtin_prefetch(out + i * a.dim, 1);
          __builtin_prefetch(out + i * a.dim + V, 1);
        }
        tiles(m, a.rows, products + c * a.padded, a.padded, 1, a.x_numbers + d * a.rows, TILE,
                [&](int i, int j, vec v) {
                  float *o = out + i * a.dim + j, *at = w + i * a.dim + j;
                  const vec old = load(at);
                  if (!a.moves_weights) return store(o, unit * (v - along[c + i] * old));
                  const vec next = momentum * load(o) + unit * v +
                                   (float(a.decay) - unit * along[c + i]) * old;
                  store(o, next);
                  store(at, old - rate * next);
                });
      }
  }

  void gradients(float* embeddings_out, bool is_first) {
    if (a.needs_embeddings) embeddings(embeddings_out, is_first);
    if (a.needs_weight) weights();
  }
};

#if BINARY

template <bool STATISTICS>
void binary_block(Block& block, Numbers& sums) {
  const Arguments& a = block.a;
  Logarithms terms;
  vec cosine_c = {}, active_c = {};
  const float factor = a.factor;
  block.multiply();
  block.differentiate(
      block.products,
      [&](I, auto has_excluded, ints excluded, vec cosine, vec logit)
          __attribute__((always_inline)) {
        if (has_excluded) logit = excluded ? all(-1e4f) : logit;
        // softplus and sigmoid from one exp that cannot overflow
        const vec small = exp_of(-larger(logit, -logit));
        terms.add(logit, small);
        if (STATISTICS) {
          cosine_c += cosine;
          active_c += logit > vec{} ? all(1.0f) : vec{};
        }
        return (logit >= vec{} ? all(1.0f) : small) / (1.0f + small) * factor;
      },
      [&](I c, float bias) {
        terms.note(a.padded / V);
        block.take_bias(c, bias, sums);
        if (STATISTICS) {
          sums.cosine += add(cosine_c);
          sums.active += add(active_c);
          cosine_c = active_c = vec{};
        }
      });
  terms.flush();
  sums.loss += terms.sum;
}

#else

// The largest logit of each row, and the sum of exp above it: first one, then the other.
template <bool STATISTICS>
void softmax_sums(Block& block, float* highest, float* total, Numbers& sums) {
  const Arguments& a = block.a;
  float* const products = block.products;
  if (block.is_kept()) block.products = block.kept();
  block.multiply();
  std::vector<float> now(highest, highest + a.padded);
  vec cosine_c = {}, active_c = {};
  block.map(
      block.products,
      [&](I, I b, auto has_excluded, ints excluded, vec cosine, vec logit, vec)
          __attribute__((always_inline)) {
        if (has_excluded) logit = excluded ? all(LOWEST) : logit;
        store(&now[b], larger(load(&now[b]), logit));
        if (STATISTICS) {
          cosine_c += cosine;
          active_c += logit > load(a.target_logit + b) ? all(1.0f) : vec{};
        }
      },
      [&](I) {
        if (!STATISTICS) return;
        sums.cosine += add(cosine_c);
        sums.active += add(active_c);
        cosine_c = active_c = vec{};
      });
  for (I b = 0; b < a.padded; b += V) {
    const vec less = load(highest + b) - load(&now[b]);
    store(total + b, load(total + b) * exp_of(less));
    store(highest + b, load(&now[b]));
  }
  block.map(
      block.products,
      [&](I, I b, auto has_excluded, ints excluded, vec, vec logit, vec)
          __attribute__((always_inline)) {
        vec term = exp_of(logit - load(&now[b]));
        if (has_excluded) term = excluded ? vec{} : term;
        store(total + b, load(total + b) + term);
      },
      [](I) {});
  block.products = products;
}

void softmax_block(Block& block, Numbers& sums) {
  const Arguments& a = block.a;
  if (!block.is_kept()) block.multiply();
  block.differentiate(
      block.is_kept() ? block.kept() : block.products,
      [&](I b, auto, ints, vec, vec logit) __attribute__((always_inline)) {
        return exp_of(logit - load(a.top + b)) * load(a.share + b);
      },
      [&](I c, float bias) { block.take_bias(c, bias, sums); });
}

#endif

template <class Work>
void share_out(const Arguments& a, const Work& work) {
  std::atomic<I> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](I, I) {
    static thread_local std::vector<float> scratch;
    Block block(a, scratch);
    for (I part; (part = next++) < a.parts;) {
      Numbers sums;
      for (I number = a.cuts[part]; number < a.cuts[part + 1]; number++) {
        block.begin(number);
        work(block, part, number == a.cuts[part], sums);
      }
      double* to = a.numbers + 4 * part;
      to[0] = sums.loss, to[1] = sums.bias, to[2] = sums.cosine, to[3] = sums.active;
    }
  });
}

// The parts' gradients of the embeddings, added in their order into the first.
void add_parts(const Arguments& a) {
  const I size = a.rows * a.dim;
  at::parallel_for(0, a.rows, 1, [&](I from, I to) {
    for (I i = from * a.dim; i < to * a.dim; i += V) {
      vec sum = load(a.embeddings + i);
      for (I part = 1; part < a.parts; part++) sum += load(a.embeddings + part * size + i);
      store(a.embeddings + i, sum);
    }
  });
}

}  // namespace

extern "C" {

// x as tiles: `out` has, for TILE columns at a time, all rows k of x(k, n) = x[k·across + n·along].
void pack(const float* x, I K, I N, I across, I along, float* out) {
  for (I n = 0; n < N; n += TILE)
    for (I k = 0; k < K; k++)
      for (I j = n; j < n + TILE; j++) *out++ = j < N ? x[k * across + j * along] : 0.0f;
}

I tile_columns() { return TILE; }

#if BINARY

void binary(const Arguments* of) {
  const Arguments& a = *of;
  share_out(a, [&](Block& block, I part, bool is_first, Numbers& sums) {
    a.statistics ? binary_block<true>(block, sums) : binary_block<false>(block, sums);
    block.gradients(a.embeddings + part * a.rows * a.dim, is_first);
  });
  if (a.needs_embeddings) add_parts(a);
}

#else

void softmax_first(const Arguments* of) {
  const Arguments& a = *of;
  share_out(a, [&](Block& block, I part, bool is_first, Numbers& sums) {
    float *highest = a.highest + part * a.padded, *total = a.total + part * a.padded;
    if (is_first) std::fill_n(highest, a.padded, LOWEST), std::fill_n(total, a.padded, 0.0f);
    a.statistics ? softmax_sums<true>(block, highest, total, sums)
                 : softmax_sums<false>(block, highest, total, sums);
  });
}

void softmax_second(const Arguments* of) {
  const Arguments& a = *of;
  share_out(a, [&](Block& block, I part, bool is_first, Numbers& sums) {
    softmax_block(block, sums);
    block.gradients(a.embeddings + part * a.rows * a.dim, is_first);
  });
  if (a.needs_embeddings) add_parts(a);
}

#endif

}  // extern "C"
