// A step of variables on one GPU: as few launches as their pointers fit into. No TensorFlow, so that tests run it with a
// driver of their own.

#ifndef DTOPT_LAUNCH_H_
#define DTOPT_LAUNCH_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"
#include "packed.h"
#include "squares.h"
#include "sums.h"
#include "table.h"

namespace dtopt {

constexpr int64_t kGpuBlock = 16384;  // elements that a block of threads updates: `kBlock` of gpu.h

// One launch of a step: a kernel, and what its threads are.
struct GpuVisit {
  std::string name;
  Visit visit = kUpdateElements;
  PassCounts pass;
};

// A kernel for variables of one dtype, with gradients of one dtype.
struct GpuKernel {
  std::string name;
  const std::string* ptx = nullptr;  // of its module, or machine code; kept by whoever has it
  int64_t slots = 0, scalars = 0, tensors = 0, threads = 0;  // slots: shaped like their variable
  // Of a rule that adds up, or has slots of fewer dims: how many of these there are, and all its launches, in order.
  int64_t small_slots = 0;
  std::vector<PassCounts> passes;
  std::vector<GpuVisit> visits;
  bool is_packed = false;  // whether arrays may be stored in few bits

  bool is_whole() const { return !visits.empty(); }
};

constexpr int64_t kAllRows = -1;

// Where the arrays of one variable are on the GPU, and its numbers.
struct GpuVariable {
  const void* gradient = nullptr;
  void *variable = nullptr, *average = nullptr, *rounding = nullptr;
  std::vector<void*> slots;  // all of them
  int64_t size = 0;
  double scale = 1, decay = 1;
  Grid grid;  // used where a rule adds up
  // If only some rows are updated: of each of so many gradients its row, and how large it is.
  const int64_t* table = nullptr;
  int64_t given = kAllRows, columns = 0;
  std::vector<const void*> powers;  // the sums of powers that the rule needs of each
  // Of a kernel with arrays in few bits, as `PackedLaunch` of packed_gpu.h has it.
  DtoptStorage of_gradient = kAsComputed;
  std::vector<float*> scales;
  std::vector<uint32_t> keys;
};

// How much memory, in float64, the sums of a variable take.
inline int64_t WorkspaceOf(const GpuKernel& kernel, const GpuVariable& of) {
  if (!kernel.is_whole()) return 0;
  int64_t most = 0;
  for (const PassCounts& pass : kernel.passes) most = std::max(most, Joined(pass, of.grid.Over(pass.over)).end);
  return Places(Made::By(kernel.passes.data(), kernel.passes.size()), of.grid).runs + most;
}

// The numbers of a step that all its variables share.
struct GpuNumbers {
  const double* scalars = nullptr;
  double limit = 0, average_weight = 0, value_weight = 0;
  int rounding_type = 0;
  bool overwrites = false;
  const double* control = nullptr;  // in device memory, see gpu.h; null: none
  bool are_places = false;          // whether the scales of variables are places in it
  // Of a kernel with arrays in few bits: how each slot, then the variable, is stored, and the slots' code books on the GPU.
  std::vector<DtoptStorage> storages;
  std::vector<const DtoptBook*> books;
};

// The argument of a kernel, `Launch` of gpu.h, `WholeLaunch` of sums_gpu.h or `PackedLaunch` of packed_gpu.h, of which only the
// numbers of slots, scalars and tensors are known here.
class GpuArgument {
 public:
  explicit GpuArgument(const GpuKernel& kernel)
      : kernel_(kernel), tensors_(kernel.tensors), visits_(kernel.visits) {
    if (!kernel.is_whole()) visits_ = {{kernel.name}};
    firsts_.resize(visits_.size());
    int64_t at = kScalars + 8 * std::max<int64_t>(kernel.scalars, 1);
    first_ = at;
    at = (at + 4 * (tensors_ + 1) + 7) / 8 * 8;
    size_ = std::exchange(at, at + 8 * tensors_);
    gradient_ = std::exchange(at, at + 8 * tensors_);
    variable_ = std::exchange(at, at + 8 * tensors_);
    average_ = std::exchange(at, at + 8 * tensors_);
    rounding_ = std::exchange(at, at + 8 * tensors_);
    slots_ = std::exchange(at, at + 8 * tensors_ * std::max<int64_t>(kernel.slots, 1));
    scale_ = std::exchange(at, at + 8 * tensors_);
    decay_ = std::exchange(at, at + 8 * tensors_);
    grid_ = std::exchange(at, at + (kernel.is_whole() ? 8 * tensors_ * kGridNumbers : 0));
    work_ = std::exchange(at, at + (kernel.is_whole() ? 8 * tensors_ : 0));
    small_ = std::exchange(at, at + (kernel.is_whole() ? 8 * tensors_ * std::max<int64_t>(kernel.small_slots, 1) : 0));
    if (kernel.is_packed) {
      const int64_t slots = std::max<int64_t>(kernel.slots, 1);
      storage_ = std::exchange(at, at + 4 * (kernel.slots + 1));
      given_ = std::exchange(at, (at + 4 * tensors_ + 7) / 8 * 8);
      book_ = std::exchange(at, at + 8 * slots);
      scales_ = std::exchange(at, at + 8 * tensors_ * slots);
      key_ = std::exchange(at, (at + 4 * tensors_ * (kernel.slots + 1) + 7) / 8 * 8);
    }
    bytes_.resize(at);
  }

  void Begin(const GpuNumbers& numbers) {
    count_ = 0;
    for (auto& first : firsts_) first.assign(1, 0);
    Put<int32_t>(4, numbers.rounding_type);
    Put<int32_t>(8, numbers.overwrites);
    Put<int32_t>(12, numbers.are_places);
    Put(16, numbers.control);
    Put(24, numbers.limit);
    Put(32, numbers.average_weight);
    Put(40, numbers.value_weight);
    for (int64_t k = 0; k < kernel_.scalars; ++k) Put(kScalars + 8 * k, numbers.scalars[k]);
    if (!kernel_.is_packed) return;
    for (int64_t k = 0; k <= kernel_.slots; ++k) Put<int32_t>(storage_ + 4 * k, numbers.storages[k]);
    for (int64_t k = 0; k < kernel_.slots; ++k) Put(book_ + 8 * k, numbers.books[k]);
  }

  // Whether a variable still fits: as one more, and with its blocks, which an int counts.
  bool Fits(const GpuVariable& of) const {
    bool fits = count_ < tensors_;
    for (size_t k = 0; k < visits_.size(); ++k) fits = fits && firsts_[k].back() + Blocks(visits_[k], of) <= INT32_MAX;
    return fits;
  }

  // work: memory for its sums.
  void Add(const GpuVariable& of, double* work) {
    Put(size_ + 8 * count_, of.size);
    Put(gradient_ + 8 * count_, of.gradient);
    Put(variable_ + 8 * count_, of.variable);
    Put(average_ + 8 * count_, of.average);
    Put(rounding_ + 8 * count_, of.rounding);
    for (int64_t k = 0; k < kernel_.slots; ++k) Put(slots_ + 8 * (k * tensors_ + count_), of.slots[k]);
    Put(scale_ + 8 * count_, of.scale);
    Put(decay_ + 8 * count_, of.decay);
    if (kernel_.is_whole()) {
      const int64_t numbers[kGridNumbers] = {of.grid.matrices, of.grid.rows, of.grid.columns};
      for (int64_t k = 0; k < kGridNumbers; ++k) Put(grid_ + 8 * (k * tensors_ + count_), numbers[k]);
      Put(work_ + 8 * count_, work);
      for (int64_t k = 0; k < kernel_.small_slots; ++k) {
        Put(small_ + 8 * (k * tensors_ + count_), of.slots[kernel_.slots + k]);
      }
    }
    if (kernel_.is_packed) {
      Put<int32_t>(given_ + 4 * count_, of.of_gradient);
      for (int64_t k = 0; k < kernel_.slots; ++k) Put(scales_ + 8 * (k * tensors_ + count_), of.scales[k]);
      for (int64_t k = 0; k <= kernel_.slots; ++k) Put(key_ + 4 * (k * tensors_ + count_), of.keys[k]);
    }
    for (size_t k = 0; k < visits_.size(); ++k) firsts_[k].push_back(firsts_[k].back() + Blocks(visits_[k], of));
    Put<int32_t>(0, ++count_);
  }

  // Makes it the argument of a launch. Returns the number of blocks.
  int64_t Divide(size_t visit) {
    const auto& first = firsts_[visit];
    std::memcpy(bytes_.data() + first_, first.data(), first.size() * sizeof(int32_t));
    return first.back();
  }

  int64_t threads(size_t visit) const {
    return visits_[visit].visit == kUpdateElements ? kernel_.threads : kSumsThreads;
  }

  const std::vector<GpuVisit>& visits() const { return visits_; }
  int64_t count() const { return count_; }
  void* data() { return bytes_.data(); }

  // What `RowLaunch` of gpu.h has besides.
  void Append(const GpuVariable& of) {
    const int64_t at = bytes_.size();
    bytes_.resize(at + 24 + 8 * std::max<size_t>(of.powers.size(), 1));
    Put(at, of.given);
    Put(at + 8, of.columns);
    Put(at + 16, of.table);
    for (size_t k = 0; k < of.powers.size(); ++k) Put(at + 24 + 8 * k, of.powers[k]);
  }

 private:
  static constexpr int64_t kScalars = 48;     // where they begin
  static constexpr int64_t kGridNumbers = 3;  // matrices, rows and columns

  int64_t Blocks(const GpuVisit& visit, const GpuVariable& of) const {
    if (visit.visit == kUpdateElements) return DividedUp(of.size, kernel_.is_packed ? kCodedAtOnce : kGpuBlock);
    return DividedUp(ThreadsOf(visit.visit, visit.pass, of.grid), kSumsThreads);
  }

  template <typename T>
  void Put(int64_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }

  const GpuKernel& kernel_;
  const int64_t tensors_;
  std::vector<GpuVisit> visits_;
  std::vector<std::vector<int32_t>> firsts_;  // by launch: the first block of each variable, and the number of all
  int64_t first_, size_, gradient_, variable_, average_, rounding_, slots_, scale_, decay_, grid_, work_, small_;
  int64_t storage_, given_, book_, scales_, key_;
  int64_t count_ = 0;
  std::vector<char> bytes_;
};

// Tensors of one dtype on a GPU whose squares are added up, and where their sums go.
struct GpuSquares {
  std::vector<const void*> values;
  std::vector<int64_t> sizes;
  std::vector<int> places;  // of their sums
  double* sums = nullptr;
  double* runs = nullptr;  // memory for the sum of each run, as many as `RunsOf` says

  static int64_t RunsOf(int64_t size) { return (size + kSquaredAtOnce - 1) / kSquaredAtOnce; }
};

// Launches the sums of squares on a stream, and does not wait for them. kernel: that of the runs; its module has the other.
inline Problem LaunchSquares(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                             const GpuSquares& of) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  CuFunction runs, join;
  Problem problem = kernels->Find(driver, current.context(), kernel.name, *kernel.ptx, &runs);
  if (problem.empty()) problem = kernels->Find(driver, current.context(), "dtopt_squares_join", *kernel.ptx, &join);
  const int64_t count = of.values.size();
  auto all = std::make_unique<Squares>();
  int64_t before = 0;
  for (int64_t begin = 0; begin < count && problem.empty(); begin += kMostSquared) {
    all->count = std::min<int64_t>(kMostSquared, count - begin);
    all->first[0] = 0;
    for (int i = 0; i < all->count; ++i) {
      all->values[i] = of.values[begin + i];
      all->size[i] = of.sizes[begin + i];
      all->place[i] = of.places[begin + i];
      all->first[i + 1] = all->first[i] + GpuSquares::RunsOf(of.sizes[begin + i]);
    }
    all->runs = of.runs + before;
    all->sums = of.sums;
    before += all->first[all->count];
    void* arguments[] = {all.get()};
    const auto launch = [&](CuFunction function, int64_t threads) {
      const unsigned blocks = (threads + kernel.threads - 1) / kernel.threads;
      if (blocks == 0 || !problem.empty()) return;
      const CuResult result =
          driver.launch(function, blocks, 1, 1, kernel.threads, 1, 1, 0, stream, arguments, nullptr);
      if (result != 0) problem = driver.Text("launching the sums of squares", result);
    };
    launch(runs, int64_t{kLanes} * all->first[all->count]);
    launch(join, int64_t{kLanes} * all->count);
  }
  return problem;
}

// Launches what makes scales of sums of squares, and does not wait for it. kernel: any of the module that has it, too.
inline Problem LaunchScaling(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                             const Scaling& of) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  CuFunction function;
  const Problem missing = kernels->Find(driver, current.context(), "dtopt_squares_scale", *kernel.ptx, &function);
  if (!missing.empty()) return missing;
  Scaling all = of;
  void* arguments[] = {&all};
  const CuResult result = driver.launch(function, 1, 1, 1, kernel.threads, 1, 1, 0, stream, arguments, nullptr);
  return result == 0 ? "" : driver.Text("launching the scales of gradients", result);
}

// Launches the sums of rows, and does not wait for them. kernel: of the dtype of the values.
inline Problem LaunchTable(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                           const Table& of, int64_t bytes_of_sums) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  CuFunction function;
  const Problem missing = kernels->Find(driver, current.context(), kernel.name, *kernel.ptx, &function);
  if (!missing.empty()) return missing;
  if (of.is_dense && bytes_of_sums > 0) {
    const auto fill = [&](void* sums, int64_t bytes) {
      return bytes == 0 ? 0 : driver.fill(reinterpret_cast<CuAddress>(sums), 0, bytes, stream);
    };
    CuResult result = fill(of.sums, bytes_of_sums);
    if (result == 0) result = fill(of.powers, of.power_count * bytes_of_sums);
    if (result != 0) return driver.Text("clearing the sums of rows", result);
  }
  if (of.given == 0) return "";
  Table all = of;
  void* arguments[] = {&all};
  const unsigned blocks = (of.given * kLanes + kRowThreads - 1) / kRowThreads;
  const CuResult result = driver.launch(function, blocks, 1, 1, kRowThreads, 1, 1, 0, stream, arguments, nullptr);
  return result == 0 ? "" : driver.Text("launching the sums of rows", result);
}

// Launches the step of some rows of one variable. kernel: of one variable.
inline Problem LaunchRows(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                          const GpuVariable& variable, const GpuNumbers& numbers) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  CuFunction function;
  const Problem missing = kernels->Find(driver, current.context(), kernel.name, *kernel.ptx, &function);
  if (!missing.empty() || variable.given == 0 || variable.size == 0) return missing;
  GpuArgument argument(kernel);
  argument.Begin(numbers);
  argument.Add(variable, nullptr);
  argument.Divide(0);
  argument.Append(variable);
  void* arguments[] = {argument.data()};
  const unsigned blocks = (variable.given * kLanes + kernel.threads - 1) / kernel.threads;
  const CuResult result = driver.launch(function, blocks, 1, 1, kernel.threads, 1, 1, 0, stream, arguments, nullptr);
  return result == 0 ? "" : driver.Text("launching the kernel of rows", result);
}

// Launches a step on a stream, and does not wait for it. Where it returns a problem with the first launch, or one before
// the update, nothing was changed. workspace: memory for what `WorkspaceOf` says of all variables.
inline Problem LaunchStep(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                          const std::vector<GpuVariable>& variables, const GpuNumbers& numbers,
                          double* workspace = nullptr) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  GpuArgument argument(kernel);
  std::vector<CuFunction> functions(argument.visits().size());
  for (size_t k = 0; k < functions.size(); ++k) {
    const std::string& name = argument.visits()[k].name;
    const Problem missing = kernels->Find(driver, current.context(), name, *kernel.ptx, &functions[k]);
    if (!missing.empty()) return missing;
  }
  argument.Begin(numbers);
  const auto launch = [&]() -> Problem {
    void* arguments[] = {argument.data()};
    for (size_t k = 0; k < functions.size(); ++k) {
      const int64_t blocks = argument.Divide(k), threads = argument.threads(k);
      if (blocks == 0) continue;
      const CuResult result = driver.launch(functions[k], blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
      if (result != 0) return driver.Text("launching the kernel", result);
    }
    argument.Begin(numbers);
    return "";
  };
  for (const GpuVariable& variable : variables) {
    if (variable.size == 0 && !kernel.is_whole()) continue;  // slots of fewer dims may have elements
    if (!argument.Fits(variable)) {
      const Problem problem = launch();
      if (!problem.empty()) return problem;
    }
    argument.Add(variable, workspace);
    workspace += WorkspaceOf(kernel, variable);
  }
  return launch();
}

}  // namespace dtopt

#endif  // DTOPT_LAUNCH_H_
