// Kernels of rules that add up over a variable, its matrices, rows or columns, before they update it, and of slots that
// have fewer dims. sums.h says how a variable is divided; what functions are given, whole.h says.
//
// A pass is three kernels, and one more for columns: warps add up runs of elements, of which lane k has the elements k,
// k + 32, ... and the lanes are folded in halves; then sums of runs are added one after the other, and then those of
// bands, as on CPUs. What becomes known stays in the GPU's memory, where the kernels after it read it.

#ifndef DTOPT_SUMS_GPU_H_
#define DTOPT_SUMS_GPU_H_

#include "gpu.h"
#include "sums.h"

#define DTOPT_SUMS(name)                                                                                            \
  DTOPT_FN void name##_run(const T* __restrict variable, const Wide<T>* __restrict gradient, void* const* slots,    \
                           const double* scalars, Wide<T> scale, Wide<T> limit, Wide<T> decay, Count<1> size,       \
                           double* sums)
#define DTOPT_EXPORT_SUMS(name)                                                                                     \
  struct name##_rule {                                                                                              \
    template <typename T>                                                                                           \
    static DTOPT_FN void Run(const T* variable, const Wide<T>* gradient, void* const* slots, const double* scalars, \
                             Wide<T> scale, Wide<T> limit, Wide<T> decay, double* sums) {                           \
      name##_run<T>(variable, gradient, slots, scalars, scale, limit, decay, {}, sums);                             \
    }                                                                                                               \
  };
#define DTOPT_STORES(name) DTOPT_FN void name##_run(void* const* slots, const double* scalars, Count<1> size)
#define DTOPT_EXPORT_STORES(name)                                       \
  struct name##_rule {                                                  \
    template <typename T>                                               \
    static DTOPT_FN void Run(void* const* slots, const double* scalars) { \
      name##_run<T>(slots, scalars, {});                                \
    }                                                                   \
  };

namespace {

using namespace dtopt;

constexpr int kTerms = 1;  // elements that a function of sums is given at a time

template <typename C>
DTOPT_FN double Sum(const C* values, Count<1>) {
  return values[0];
}

constexpr int AtLeastOne(int64_t count) { return count > 0 ? static_cast<int>(count) : 1; }

// What `DTOPT_PLAN` says of a rule, as the arguments of the kernels: `Launch`, then what is known of each variable.
template <typename Plan, typename T>
struct WholeLaunch : Launch<T, Plan::kSlots, Plan::kScalars, Plan::kTensors> {
  int64_t matrices[Plan::kTensors], rows[Plan::kTensors], columns[Plan::kTensors];
  double* work[Plan::kTensors];  // see `Places`
  void* small[AtLeastOne(Plan::kRowSlots + Plan::kColumnSlots + Plan::kOneSlots)][Plan::kTensors];
};

// The variable that a thread works on, and the thread's number among those that do.
template <typename Plan, typename T>
struct Variable {
  using L = WholeLaunch<Plan, T>;
  const L& all;
  const int at;
  const int64_t thread;
  const Grid grid;
  const Places places;

  DTOPT_FN explicit Variable(const L& all) : Variable(all, VariableOf(all, blockIdx.x)) {}

  DTOPT_FN double* work(int64_t place) const { return all.work[at] + place; }
  DTOPT_FN T* row_slot(int k) const { return static_cast<T*>(all.small[k][at]); }
  DTOPT_FN T* column_slot(int k) const { return row_slot(Plan::kRowSlots + k); }
  DTOPT_FN T* one_slot(int k) const { return row_slot(Plan::kRowSlots + Plan::kColumnSlots + k); }

 private:
  DTOPT_FN Variable(const L& all, int at)
      : all(all),
        at(at),
        thread(static_cast<int64_t>(blockIdx.x - all.first[at]) * kSumsThreads + threadIdx.x),
        grid(Grid::Of(all.size[at], all.matrices[at], all.rows[at], all.columns[at])),
        places(Plan::kMade, grid) {}
};

// What functions are given as scalars.
template <typename Plan, typename T>
struct Numbers {
  static constexpr int kBefore = Plan::kScalars + Plan::kOneSlots + 4, kOfMatrix = kBefore + Plan::kMade.ones;
  static constexpr int kOfRow = kOfMatrix + Plan::kMade.matrices;
  double x[AtLeastOne(kOfRow + Plan::kMade.of_rows)];

  DTOPT_FN explicit Numbers(const Variable<Plan, T>& of) {
#pragma unroll
    for (int k = 0; k < Plan::kScalars; ++k) x[k] = of.all.scalars[k];
#pragma unroll
    for (int k = 0; k < Plan::kOneSlots; ++k) x[Plan::kScalars + k] = Load(*of.one_slot(k));
    x[kBefore - 4] = of.grid.size;
    x[kBefore - 3] = of.grid.matrices;
    x[kBefore - 2] = of.grid.rows;
    x[kBefore - 1] = of.grid.columns;
#pragma unroll
    for (int k = 0; k < Plan::kMade.ones; ++k) x[kBefore + k] = of.work(0)[k];
  }

  DTOPT_FN void LocateMatrix(const Variable<Plan, T>& of, int64_t matrix) {
    const double* sums = of.work(of.places.matrices) + matrix;
#pragma unroll
    for (int k = 0; k < Plan::kMade.matrices; ++k) x[kOfMatrix + k] = sums[k * of.grid.matrices];
  }

  DTOPT_FN void LocateRow(const Variable<Plan, T>& of, int64_t matrix, int64_t row) {
    LocateMatrix(of, matrix);
    const double* numbers = of.work(of.places.of_rows) + row;
#pragma unroll
    for (int k = 0; k < Plan::kMade.of_rows; ++k) x[kOfRow + k] = numbers[k * of.grid.all_rows()];
  }
};

// What elements need of a column of a matrix, as streams after the slots.
template <typename Plan, typename T>
DTOPT_FN double* OfColumn(const Variable<Plan, T>& of, int k, int64_t matrix, int64_t column) {
  return of.work(of.places.of_columns) + k * of.grid.all_columns() + matrix * of.grid.columns + column;
}

// Adds up what add(k, sums) adds for each k below `size`; sums[n] is that of lane 0.
template <int count, typename Add>
DTOPT_FN void AddUp(int lane, int64_t size, double* sums, const Add& add) {
#ifdef DTOPT_HAS_LANES
#pragma unroll 4
  for (int64_t k = lane; k < size; k += kWarp) add(k, sums);
#pragma unroll
  for (int n = 0; n < count; ++n) {
#pragma unroll
    for (int width = kWarp / 2; width > 0; width /= 2) sums[n] += __shfl_down_sync(0xffffffffu, sums[n], width);
  }
#else  // one thread does what the lanes of its warp do
  double lanes[kWarp][count > 0 ? count : 1] = {};
  for (int64_t k = 0; lane == 0 && k < size; ++k) add(k, lanes[k % kWarp]);
  for (int n = 0; n < count; ++n) {
    for (int width = kWarp / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lanes[k][n] += lanes[k + width][n];
    }
    sums[n] = lanes[0][n];
  }
#endif
}

// Adds up groups of `every` values one after the other, and what they come to, for lane 0.
DTOPT_FN double InOrder(int lane, const double* values, int64_t count, int64_t every) {
  double sum = 0, group = 0;
  int64_t left = every;
  for (int64_t begin = 0; begin < count; begin += kWarp) {
#ifdef DTOPT_HAS_LANES
    const double mine = begin + lane < count ? values[begin + lane] : 0;
#endif
    for (int k = 0; k < kWarp && begin + k < count; ++k) {
#ifdef DTOPT_HAS_LANES
      group += __shfl_sync(0xffffffffu, mine, k);
#else
      if (lane == 0) group += values[begin + k];
#endif
      if (--left > 0) continue;
      sum += group;
      group = 0;
      left = every;
    }
  }
  return sum + group;
}

// The elements of a variable, for functions that add up.
template <typename Plan, typename T, typename G>
struct Elements {
  const Variable<Plan, T>& of;
  const Arrays<T, G, Plan::kSlots, Plan::kScalars, Plan::kTensors> arrays;

  DTOPT_FN explicit Elements(const Variable<Plan, T>& of) : of(of), arrays(of.all, of.at) {}

  // Element i. Its sums are added to `sums`, those of its column to `of_columns`.
  template <typename Rule, int columns>
  DTOPT_FN void Add(int64_t i, int64_t matrix, int64_t column, const double* scalars, double* sums,
                    double* of_columns) const {
    constexpr int S = Plan::kSlots, N = Plan::kMade.of_columns;
    void* streams[AtLeastOne(S + N + columns)];
    const Wide<T> gradient = Load(arrays.gradient[i]);
#pragma unroll
    for (int k = 0; k < S; ++k) streams[k] = arrays.slots[k] + i;
#pragma unroll
    for (int k = 0; k < N; ++k) streams[S + k] = OfColumn(of, k, matrix, column);
#pragma unroll
    for (int k = 0; k < columns; ++k) streams[S + N + k] = of_columns + k;
    Rule::template Run<T>(arrays.variable + i, &gradient, streams, scalars, arrays.scale, arrays.limit, arrays.decay,
                          sums);
  }
};

// A warp adds up a run of elements.
template <typename Plan, typename Rule, int pass, typename T, typename G>
DTOPT_FN void AddRuns(const WholeLaunch<Plan, T>& all) {
  constexpr PassCounts kPass = Plan::kPasses[pass];
  constexpr int kSums = kPass.sums(), kColumnSums = kPass.columns;
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const Grid& grid = of.grid;
  const int64_t run = of.thread / kWarp, row = run / grid.runs_of_row(), matrix = row / grid.rows;
  const int lane = of.thread % kWarp;
  if (run >= grid.runs()) return;
  const int64_t first = (run - row * grid.runs_of_row()) * kRunSize, begin = row * grid.columns + first;
  int64_t size = grid.columns - first < kRunSize ? grid.columns - first : kRunSize;
  if (size > grid.size - begin) size = grid.size - begin;
  const Elements<Plan, T, G> elements(of);
  Numbers<Plan, T> numbers(of);
  numbers.LocateRow(of, matrix, row);
  double sums[AtLeastOne(kSums)] = {}, unused[AtLeastOne(kColumnSums)] = {};
  AddUp<kSums>(lane, size, sums, [&](int64_t k, double* to) {
    elements.template Add<Rule, kColumnSums>(begin + k, matrix, first + k, numbers.x, to, unused);
  });
  double* runs = of.work(of.places.runs) + run;
  if (lane != 0) return;
#pragma unroll
  for (int k = 0; k < kSums; ++k) runs[k * grid.runs()] = sums[k];
}

// A thread adds up a column of a part.
template <typename Plan, typename Rule, int pass, typename T, typename G>
DTOPT_FN void AddColumns(const WholeLaunch<Plan, T>& all) {
  constexpr PassCounts kPass = Plan::kPasses[pass];
  constexpr int kSums = kPass.sums(), kColumnSums = kPass.columns;
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const Grid& grid = of.grid;
  if (of.thread >= ThreadsOf(kAddColumns, kPass, grid)) return;
  const int64_t number = of.thread / grid.columns, column = of.thread % grid.columns;
  const Part part(grid, number);
  const Elements<Plan, T, G> elements(of);
  Numbers<Plan, T> numbers(of);
  double unused[AtLeastOne(kSums)] = {}, sums[AtLeastOne(kColumnSums)] = {};
#pragma unroll 4
  for (int64_t row = part.begin; row < part.end; ++row) {
    numbers.LocateRow(of, part.matrix, row);
    elements.template Add<Rule, kColumnSums>(row * grid.columns + column, part.matrix, column, numbers.x, unused, sums);
  }
  double* parts = of.work(of.places.runs) + Joined(kPass, grid).columns + of.thread;
#pragma unroll
  for (int k = 0; k < kColumnSums; ++k) parts[k * grid.parts() * grid.columns] = sums[k];
}

// Slots and sums of rows or columns, from number `i` on, and what `pass` makes of each.
template <typename Plan, typename T, int over, int made>
struct Streams {
  static constexpr bool kOfRows = over == kRows;
  static constexpr int S = kOfRows ? Plan::kRowSlots : over == kColumns ? Plan::kColumnSlots : Plan::kOneSlots;
  static constexpr int N = kOfRows ? Plan::kMade.row_sums : over == kColumns ? Plan::kMade.column_sums : 0;
  void* x[AtLeastOne(S + N + made)];

  // before: how many numbers of each the passes before have made.
  DTOPT_FN Streams(const Variable<Plan, T>& of, int64_t i, int before) {
    const int64_t count = kOfRows ? of.grid.all_rows() : of.grid.all_columns();
#pragma unroll
    for (int k = 0; k < S; ++k) {
      x[k] = (kOfRows ? of.row_slot(k) : over == kColumns ? of.column_slot(k) : of.one_slot(k)) + i;
    }
    double* sums = of.work(kOfRows ? of.places.row_sums : of.places.column_sums) + i;
#pragma unroll
    for (int k = 0; k < N; ++k) x[S + k] = sums + k * count;
    double* numbers = of.work(kOfRows ? of.places.of_rows : of.places.of_columns) + i;
#pragma unroll
    for (int k = 0; k < made; ++k) x[S + N + k] = numbers + (before + k) * count;
  }
};

// A warp visits a run of the rows or columns of a matrix.
template <typename Plan, typename Rule, int pass, typename T>
DTOPT_FN void AddSmall(const WholeLaunch<Plan, T>& all) {
  constexpr PassCounts kPass = Plan::kPasses[pass];
  constexpr Made kBefore = Made::By(Plan::kPasses, pass);
  constexpr bool kOfRows = kPass.over == kRows;
  constexpr int kOver = kPass.over, kSums = kPass.sums(), kMade = kOfRows ? kPass.rows : kPass.columns;
  constexpr int kMadeBefore = kOfRows ? kBefore.of_rows : kBefore.of_columns;
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const Grid grid = of.grid.Over(kPass.over);
  const int64_t run = of.thread / kWarp, matrix = run / grid.runs_of_row();
  const int lane = of.thread % kWarp;
  if (run >= grid.runs()) return;
  const int64_t first = (run - matrix * grid.runs_of_row()) * kRunSize;
  const int64_t size = grid.columns - first < kRunSize ? grid.columns - first : kRunSize;
  Numbers<Plan, T> numbers(of);
  numbers.LocateMatrix(of, matrix);
  double sums[AtLeastOne(kSums)] = {};
  AddUp<kSums>(lane, size, sums, [&](int64_t k, double* to) {
    const Streams<Plan, T, kOver, kMade> streams(of, matrix * grid.columns + first + k, kMadeBefore);
    Rule::template Run<T>(nullptr, nullptr, streams.x, numbers.x, 1, 1, 1, to);
  });
  double* runs = of.work(of.places.runs) + run;
  if (lane != 0) return;
#pragma unroll
  for (int k = 0; k < kSums; ++k) runs[k * grid.runs()] = sums[k];
}

// Adds up the runs of bands and parts, a warp each, and of rows, and the parts of columns, a thread each.
template <typename Plan, int pass, typename T>
DTOPT_FN void JoinRuns(const WholeLaunch<Plan, T>& all) {
  constexpr PassCounts kPass = Plan::kPasses[pass];
  constexpr Made kBefore = Made::By(Plan::kPasses, pass);
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const Grid grid = of.grid.Over(kPass.over);
  const Joined joined(kPass, grid);
  const double* runs = of.work(of.places.runs);
  double* to = of.work(of.places.runs);
  const int64_t every = grid.runs_of_row();
  const int lane = of.thread % kWarp;
  int64_t at = of.thread / kWarp;
  if (at < kPass.ones * grid.bands) {
    const int64_t k = at / grid.bands, band = at % grid.bands, begin = grid.begin(band) * every;
    const int64_t count = grid.begin(band + 1) * every - begin;
    const double sum = InOrder(lane, runs + k * grid.runs() + begin, count, count);
    if (lane == 0) to[joined.ones + at] = sum;
    return;
  }
  at -= kPass.ones * grid.bands;
  if (at < kPass.matrices * grid.parts()) {
    const int64_t k = at / grid.parts();
    const Part part(grid, at % grid.parts());
    const double* first = runs + (kPass.ones + k) * grid.runs() + part.begin * every;
    const double sum = InOrder(lane, first, (part.end - part.begin) * every, every);
    if (lane == 0) to[joined.matrices + at] = sum;
    return;
  }
  at = (at - kPass.matrices * grid.parts()) * kWarp + lane;
  const int64_t rows = DividedUp(grid.all_rows(), kWarp) * kWarp, columns = DividedUp(grid.all_columns(), kWarp) * kWarp;
  if (at < kPass.row_sums() * rows) {
    const int64_t k = at / rows, row = at % rows;
    if (row >= grid.all_rows()) return;
    const double* first = runs + (kPass.ones + kPass.matrices + k) * grid.runs() + row * every;
    double sum = 0;
    for (int64_t run = 0; run < every; ++run) sum += first[run];
    of.work(of.places.row_sums)[(kBefore.row_sums + k) * grid.all_rows() + row] = sum;
    return;
  }
  at -= kPass.row_sums() * rows;
  if (at >= kPass.column_sums() * columns) return;
  const int64_t k = at / columns, i = at % columns, matrix = i / grid.columns, column = i - matrix * grid.columns;
  if (i >= grid.all_columns()) return;
  const double* parts = runs + joined.columns + k * grid.parts() * grid.columns + column;
  double sum = 0;
  for (int64_t part = FirstPart(grid, matrix); part < EndOfParts(grid, matrix); ++part) sum += parts[part * grid.columns];
  of.work(of.places.column_sums)[(kBefore.column_sums + k) * grid.all_columns() + i] = sum;
}

// A thread adds up the bands of all, or the parts of a matrix.
template <typename Plan, int pass, typename T>
DTOPT_FN void JoinParts(const WholeLaunch<Plan, T>& all) {
  constexpr PassCounts kPass = Plan::kPasses[pass];
  constexpr Made kBefore = Made::By(Plan::kPasses, pass);
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const Grid grid = of.grid.Over(kPass.over);
  const Joined joined(kPass, grid);
  const double* joining = of.work(of.places.runs);
  double sum = 0;
  if (of.thread < kPass.ones) {
    const double* bands = joining + joined.ones + of.thread * grid.bands;
    for (int64_t band = 0; band < grid.bands; ++band) sum += bands[band];
    of.work(0)[kBefore.ones + of.thread] = sum;
    return;
  }
  const int64_t i = of.thread - kPass.ones;
  if (i >= kPass.matrices * grid.matrices) return;
  const int64_t k = i / grid.matrices, matrix = i % grid.matrices;
  const double* parts = joining + joined.matrices + k * grid.parts();
  for (int64_t part = FirstPart(grid, matrix); part < EndOfParts(grid, matrix); ++part) sum += parts[part];
  of.work(of.places.matrices)[kBefore.matrices * grid.matrices + i] = sum;
}

// What one thread updates.
template <typename Plan, typename Rule, typename T, typename G, int threads>
DTOPT_FN void UpdateWhole(const WholeLaunch<Plan, T>& all) {
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const Grid& grid = of.grid;
  const Arrays<T, G, Plan::kSlots, Plan::kScalars, Plan::kTensors> arrays(all, of.at);
  const bool is_aligned = arrays.IsAligned() && (!Plan::kByRows || grid.columns % kPerThread<T> == 0);
  const Numbers<Plan, T> numbers(of);
  ForElements<T, threads>(all, of.at, is_aligned, [&](auto count, int64_t i) {
    constexpr int kCount = decltype(count)::value, N = Plan::kMade.of_columns;
    if constexpr (Plan::kByRows) {
      const int64_t row = i / grid.columns, column = i - row * grid.columns, matrix = row / grid.rows;
      Numbers<Plan, T> here = numbers;
      here.LocateRow(of, matrix, row);
      double columns[AtLeastOne(N)][kPerThread<T>] = {};
      void* others[AtLeastOne(N)];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const double* from = OfColumn(of, k, matrix, column);
#pragma unroll
        for (int j = 0; j < kCount; ++j) columns[k][j] = from[j];
        others[k] = columns[k];
      }
      arrays.template Update<Rule, kCount, N>(i, here.x, others);
    } else {
      arrays.template Update<Rule, kCount>(i, numbers.x);
    }
  });
}

// A thread stores an element of the slots of rows, of columns or of one number.
template <typename Plan, typename Rule, int shape, typename T>
DTOPT_FN void StoreSmall(const WholeLaunch<Plan, T>& all) {
  if (IsSkipped(all)) return;
  const Variable<Plan, T> of(all);
  const int64_t of_matrix = shape == kRows ? of.grid.rows : of.grid.columns;
  if (of.thread >= (shape == kOne ? 1 : of.grid.matrices * of_matrix)) return;
  Numbers<Plan, T> numbers(of);
  if (shape != kOne) numbers.LocateMatrix(of, of.thread / of_matrix);
  const Streams<Plan, T, shape, 0> streams(of, of.thread, 0);
  Rule::template Run<T>(streams.x, numbers.x);
}

}  // namespace

// What kernels know of a rule: how many slots there are of each shape, scalars, variables of one launch, and passes; then
// those, at least one, for which there must be an array.
#define DTOPT_PLAN(name, slots, row_slots, column_slots, one_slots, scalars, tensors, passes, is_by_rows, ...)        \
  struct name##_plan {                                                                                                \
    static constexpr int kSlots = slots, kRowSlots = row_slots, kColumnSlots = column_slots, kOneSlots = one_slots;   \
    static constexpr int kScalars = scalars, kTensors = tensors;                                                      \
    static constexpr bool kByRows = is_by_rows;                                                                       \
    static constexpr dtopt::PassCounts kPasses[] = {__VA_ARGS__};                                                     \
    static constexpr dtopt::Made kMade = dtopt::Made::By(kPasses, passes);                                            \
  };

// A kernel that calls a function of its argument.
#define DTOPT_WHOLE_KERNEL(kernel, name, T, threads, at_once, ...)                                                    \
  using kernel##_launch = WholeLaunch<name##_plan, T>;                                                                \
  extern "C" __global__ void __launch_bounds__(threads, at_once) kernel(DTOPT_ARGUMENT kernel##_launch all) {         \
    __VA_ARGS__(all);                                                                                                 \
  }                                                                                                                   \
  DTOPT_EMULATED_CALL(kernel, threads, kernel##_launch, __VA_ARGS__)

#endif  // DTOPT_SUMS_GPU_H_
