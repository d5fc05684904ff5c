// `launch.h` for Python: a step of plain arrays with the driver in a library.

#include <memory>

#include "launch.h"

namespace {
std::unique_ptr<dtopt::Kernels> kernels(new dtopt::Kernels);
std::unique_ptr<std::string> module;
}  // namespace

extern "C" {

// As a new process: no kernel has been loaded.
__attribute__((visibility("default"))) void forget() {
  kernels.reset(new dtopt::Kernels);
  module.reset();
}

struct Numbers {
  const double* scalars;
  double limit, average_weight, value_weight;
  int64_t rounding_type, overwrites;
  const double* control;
  int64_t are_places;
};

// pointers: of each variable its gradient, variable, average, rounding and slots; sizes, scales, decays: of each. Returns
// the problem, empty if there was none, which stands until the next call.
__attribute__((visibility("default"))) const char* step(const char* driver_path, const char* name, const char* ptx,
                                                        const int64_t* counts, void* stream, int64_t variables,
                                                        void* const* pointers, const int64_t* sizes, const double* scales,
                                                        const double* decays, const Numbers* numbers) {
  static std::string problem;
  if (module == nullptr || *module != ptx) module.reset(new std::string(ptx));
  dtopt::Driver driver;
  problem = dtopt::Driver::Open(driver_path, &driver);
  if (!problem.empty()) return problem.c_str();
  const dtopt::GpuKernel kernel{name, module.get(), counts[0], counts[1], counts[2], counts[3]};
  std::vector<dtopt::GpuVariable> all;
  for (int64_t i = 0; i < variables; ++i) {
    void* const* at = pointers + i * (4 + kernel.slots);
    all.push_back({at[0], at[1], at[2], at[3], {at + 4, at + 4 + kernel.slots}, sizes[i], scales[i], decays[i]});
  }
  const dtopt::GpuNumbers shared{numbers->scalars, numbers->limit, numbers->average_weight, numbers->value_weight,
                                 static_cast<int>(numbers->rounding_type), numbers->overwrites != 0, numbers->control,
                                 numbers->are_places != 0};
  problem = dtopt::LaunchStep(driver, kernels.get(), stream, kernel, all, shared);
  return problem.c_str();
}

// A step of a rule that adds up. pointers: as for `step`. counts: slots like the variable, scalars, variables of one launch,
// threads of the update, smaller slots, passes, launches. passes: what `PassCounts` has of each. visits: of each launch what
// `Visit` says, and its pass or -1. grids: of each variable its matrices, rows and columns.
__attribute__((visibility("default"))) const char* whole_step(
    const char* driver_path, const char* name, const char* ptx, const int64_t* counts, const int64_t* passes,
    const char* const* names, const int64_t* visits, int64_t variables, void* const* pointers, const int64_t* sizes,
    const int64_t* grids, const double* scales, const Numbers* numbers) {
  static std::string problem;
  if (module == nullptr || *module != ptx) module.reset(new std::string(ptx));
  dtopt::Driver driver;
  problem = dtopt::Driver::Open(driver_path, &driver);
  if (!problem.empty()) return problem.c_str();
  dtopt::GpuKernel kernel{name, module.get(), counts[0], counts[1], counts[2], counts[3], counts[4], {}, {}};
  for (int64_t k = 0; k < counts[5]; ++k) {
    const int64_t* of = passes + 5 * k;
    kernel.passes.push_back({of[0], of[1], of[2], of[3], of[4]});
  }
  for (int64_t k = 0; k < counts[6]; ++k) {
    const int64_t pass = visits[2 * k + 1];
    const auto of = pass < 0 ? dtopt::PassCounts{} : kernel.passes[pass];
    kernel.visits.push_back({names[k], static_cast<dtopt::Visit>(visits[2 * k]), of});
  }
  std::vector<dtopt::GpuVariable> all;
  int64_t needed = 0;
  const int64_t slots = kernel.slots + kernel.small_slots;
  for (int64_t i = 0; i < variables; ++i) {
    void* const* at = pointers + i * (4 + slots);
    const dtopt::Grid grid = dtopt::Grid::Of(sizes[i], grids[3 * i], grids[3 * i + 1], grids[3 * i + 2]);
    all.push_back({at[0], at[1], at[2], at[3], {at + 4, at + 4 + slots}, sizes[i], scales[i], 1, grid});
    needed += dtopt::WorkspaceOf(kernel, all.back());
  }
  constexpr double kUntouched = 12345;
  constexpr int64_t kBeyond = 1 << 16;
  std::vector<double> workspace(needed + kBeyond, kUntouched);
  const dtopt::GpuNumbers shared{numbers->scalars, numbers->limit, 0, 0, 0, false, numbers->control, numbers->are_places != 0};
  problem = dtopt::LaunchStep(driver, kernels.get(), &problem, kernel, all, shared, workspace.data());
  const auto beyond = workspace.begin() + needed;
  if (std::count(beyond, workspace.end(), kUntouched) != kBeyond) problem = "more memory was written than asked for";
  return problem.c_str();
}

// The sums of squares of tensors of one dtype, the last one first.
__attribute__((visibility("default"))) const char* squares(const char* driver_path, const char* name, const char* ptx,
                                                           void* stream, int64_t tensors, void* const* values,
                                                           const int64_t* sizes, double* sums) {
  static std::string problem;
  if (module == nullptr || *module != ptx) module.reset(new std::string(ptx));
  dtopt::Driver driver;
  problem = dtopt::Driver::Open(driver_path, &driver);
  if (!problem.empty()) return problem.c_str();
  const dtopt::GpuKernel kernel{name, module.get(), 0, 0, 0, 256};
  dtopt::GpuSquares of;
  int64_t runs = 0;
  for (int64_t i = 0; i < tensors; ++i) {
    of.values.push_back(values[i]);
    of.sizes.push_back(sizes[i]);
    of.places.push_back(tensors - 1 - i);
    runs += dtopt::GpuSquares::RunsOf(sizes[i]);
  }
  std::vector<double> memory(runs);
  of.sums = sums;
  of.runs = memory.data();
  problem = dtopt::LaunchSquares(driver, kernels.get(), stream, kernel, of);
  return problem.c_str();
}

// What the kernel of scales makes of sums of squares, twice: the verdict of the second is waited for. numbers: the scale, the
// limit, whether it is joint, whether it checks, whether it clips.
__attribute__((visibility("default"))) const char* scales(const char* driver_path, const char* ptx, void* stream,
                                                          int64_t count, const double* sums, const double* numbers,
                                                          double* control, double* verdict) {
  static std::string problem;
  static dtopt::Verdicts verdicts;
  if (module == nullptr || *module != ptx) module.reset(new std::string(ptx));
  dtopt::Driver driver;
  problem = dtopt::Driver::Open(driver_path, &driver);
  if (!problem.empty()) return problem.c_str();
  const dtopt::GpuKernel kernel{"", module.get(), 0, 0, 0, 256};
  Scaling all = {static_cast<int>(count), numbers[2] != 0, numbers[3] != 0, numbers[4] != 0, numbers[0], numbers[1], sums, control};
  for (int k = 0; k < 2; ++k) {
    std::shared_ptr<dtopt::Verdict> taken;
    const dtopt::Current current(driver, stream);
    problem = verdicts.Take(driver, current.context(), &taken);
    if (!problem.empty()) return problem.c_str();
    all.verdict = taken->number();
    problem = dtopt::LaunchScaling(driver, kernels.get(), stream, kernel, all);
    if (problem.empty()) problem = taken->Record(driver, stream);
    if (problem.empty() && k == 1) problem = taken->Wait(driver);
    if (k == 1) *verdict = *taken->number();
  }
  return problem.c_str();
}

}  // extern "C"
