// One step of all variables of a group: what a caller can have wrong is refused before any value changes, every buffer
// is made the variable's own, and the work is divided among threads.

#ifndef DTOPT_STEP_H_
#define DTOPT_STEP_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "groups.h"
#include "packing.h"
#include "pieces.h"
#include "sorted.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "threads.h"
#include "whole.h"

namespace dtopt {

using tensorflow::DataType;

constexpr int64_t kAlign = 32;      // updates are cut at multiples of this many elements
constexpr int64_t kSquares = 4096;  // elements whose squares are added up at a time
constexpr size_t kNumbersOfAdding = 5;

// Functions of the maths libraries, by name and dtype.
class Functions {
 public:
  static void Add(const std::string& name, DataType dtype, void* function) {
    std::lock_guard<std::mutex> lock(mutex());
    all()[{name, dtype}] = function;
  }

  template <typename Function>
  static Function Find(const std::string& name, DataType dtype) {
    std::lock_guard<std::mutex> lock(mutex());
    const auto found = all().find({name, dtype});
    return found == all().end() ? nullptr : reinterpret_cast<Function>(found->second);
  }

  static Basics BasicsOf(DataType dtype) {
    Basics basics;
    basics.element = tensorflow::DataTypeSize(dtype);
    basics.wide = dtype == tensorflow::DT_DOUBLE ? 8 : 4;
    basics.average = Find<DtoptAverage>("average", dtype);
    basics.squares = Find<DtoptSquares>("squares", dtype);
    basics.widen = Find<DtoptConvert>("widen", dtype);
    basics.narrow = Find<DtoptConvert>("narrow", dtype);
    basics.add = Find<DtoptAdd>("add", dtype);
    basics.powers[0] = Find<DtoptAdd>("add_square", dtype);
    basics.powers[1] = Find<DtoptAdd>("add_abs", dtype);
    basics.round = Find<DtoptRound>("round", dtype);
    return basics;
  }

 private:
  using All = std::map<std::pair<std::string, DataType>, void*>;
  // Never destroyed: TensorFlow's threads may still run ops after this library's statics are gone.
  static std::mutex& mutex() { static auto* it = new std::mutex; return *it; }
  static All& all() { static auto* it = new All; return *it; }
};

// The four storage types.
class AllBasics {
 public:
  static absl::Status Make(AllBasics* made) {
    for (const DataType dtype :
         {tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_BFLOAT16, tensorflow::DT_HALF}) {
      Basics& basics = made->all_[dtype] = Functions::BasicsOf(dtype);
      if (basics.squares == nullptr) return absl::FailedPreconditionError("dtopt's maths were not loaded");
    }
    return absl::OkStatus();
  }

  const Basics* operator[](DataType dtype) const {  // null: none of the four
    const auto found = all_.find(dtype);
    return found == all_.end() ? nullptr : &found->second;
  }

 private:
  std::map<DataType, Basics> all_;
};

// The gradient of one variable. `rows`: int64, ascending, of its IndexedSlices; null if it is dense. They are rows of the
// whole table, of which the variable is the part that `region` says. Or they are those of `sorted`, and `values` is what
// these were made of.
struct Gradient {
  const Tensor* values = nullptr;
  const Tensor* rows = nullptr;
  Region region;
  const SortedRows* sorted = nullptr;
  bool is_mean = false;  // over several calls, of which one may have named a row and another not
  // On a GPU: of each of `values` its row, or -1, in the GPU's memory.
  const Tensor* table = nullptr;
  const Tensor* powers = nullptr;  // and of each the sums of the powers that the rule needs, one power after the other

  bool IsDense() const { return rows == nullptr && sorted == nullptr && table == nullptr; }

  // Rows of a group on a GPU are read there.
  void PutOnGpu() {
    table = rows;
    rows = nullptr;
  }
  const int64_t* begin() const {
    return sorted != nullptr ? sorted->rows.data() : static_cast<const int64_t*>(rows->data());
  }
  const int64_t* end() const { return begin() + (sorted != nullptr ? sorted->rows.size() : rows->NumElements()); }
};

// The numbers of a step, as ops are given them.
struct Numbers {
  std::vector<double> scalars, scales, decays, options, packing;  // the last two: see calls.h
  std::vector<bool> active;                              // by variable; empty: all
  bool overwrite = false, is_identity_at_zero = false;
  // By variable, on its GPU, as `LaunchControl` makes it: then scales are places in it. Empty: none.
  std::vector<const Tensor*> controls;
};

// Which rows and columns of a variable are updated; false if they are none such.
inline bool PartOf(const Group& group, size_t i, RowBox* part) {
  const tensorflow::TensorShape& shape = group.Model(i)->tensor()->shape();
  if (shape.dims() < 1) return false;
  const int64_t rows = shape.dim_size(0);
  return RowBox::Of(rows, rows == 0 ? 0 : shape.num_elements() / rows, group.IsWhole(i) ? nullptr : &group.boxes[i], part);
}

class Stepper {
 public:
  // shapes: how many slots there are of each, in order; passes: of each function that adds up, what `Adding` has; powers:
  // those of which it needs the sums.
  absl::Status Init(const std::string& rule, DataType dtype, const std::vector<int64_t>& shapes,
                    const std::vector<int64_t>& passes, size_t powers, int64_t scalars) {
    powers_ = powers;
    rule_ = rule;
    if (shapes.size() != kShapes || passes.size() % kNumbersOfAdding != 0) return InvalidArgument(rule, " is not said right");
    dtype_ = dtype;
    shapes_ = shapes;
    slots_ = std::accumulate(shapes.begin(), shapes.end(), int64_t{0});
    scalars_ = scalars;
    update_ = Functions::Find<DtoptUpdate>(rule, dtype);
    if (update_ == nullptr) return InvalidArgument("there is no rule ", rule);
    wide_update_ = Functions::Find<DtoptUpdate>(rule, tensorflow::DT_FLOAT);
    coding_ = {Functions::Find<DtoptUnpack>("unpack", tensorflow::DT_FLOAT),
               Functions::Find<DtoptPack>("pack", tensorflow::DT_FLOAT)};
    for (size_t k = 0; k < passes.size(); k += kNumbersOfAdding) {
      const std::string name = absl::StrCat(rule, "_sums", k / kNumbersOfAdding);
      parts_.adding.push_back(
          {passes[k], passes[k + 1], passes[k + 2], passes[k + 3], passes[k + 4], Functions::Find<DtoptSums>(name, dtype)});
      const Adding& added = parts_.adding.back();
      if (added.function == nullptr) return InvalidArgument("there is no ", name);
      const bool is_of_all = added.over == kFull && added.matrices + added.rows + added.columns == 0;
      parts_.by_rows = parts_.by_rows || !is_of_all;
    }
    parts_.by_rows = parts_.by_rows || shapes[kRows] > 0 || shapes[kColumns] > 0;
    const char* ends[] = {"", "_rows", "_columns", "_ones"};
    for (const int64_t shape : {kRows, kColumns, kOne}) {
      parts_.stores[shape] = Functions::Find<DtoptStores>(rule + ends[shape], dtype);
    }
    return AllBasics::Make(&basics_);
  }

  size_t powers() const { return powers_; }

  absl::Status Run(const Workers& workers, const Group& group, const std::vector<Gradient>& gradients,
                   const Numbers& numbers) const {
    TF_RETURN_IF_ERROR(CheckNumbers(numbers, gradients.size()));
    const Locks locks(group);
    PackingNumbers packing;
    TF_RETURN_IF_ERROR(packing.Read(numbers.packing, slots_, gradients.size()));
    TF_RETURN_IF_ERROR(Check(gradients, group, packing.is_used));
    const auto is_active = [&](size_t i) { return numbers.active.empty() || numbers.active[i]; };
    const size_t count = group.variables.size();
    const bool is_launched = IsLaunched(group, gradients, packing.is_used);
    if (!is_launched) TF_RETURN_IF_ERROR(CheckIsOnHost(group, numbers));
    for (const auto* list : {&group.variables, &group.slots, &group.averages, &group.roundings}) {
      for (size_t k = 0; k < list->size(); ++k) {
        if (!is_active(k % count)) continue;
        Var* const variable = (*list)[k];
        TF_RETURN_IF_ERROR(is_launched ? OwnGpuBuffer(*group.gpus[k % count], variable) : OwnBuffer(variable));
      }
    }
    if (is_launched) return Launch(group, gradients, numbers, packing);
    const auto& options = numbers.options;
    const DtoptUpdate update = packing.is_used ? wide_update_ : update_;
    const Step step{update, basics_[dtype_], options[0], options[1], options[2], numbers.overwrite, coding_};
    std::vector<Piece> pieces(count);
    std::vector<int64_t> sizes(count);
    for (size_t i = 0; i < count; ++i) {
      if (is_active(i)) Open(gradients[i], group, i, numbers, &pieces[i]);
      if (packing.is_used && is_active(i)) pieces[i].packings = PackingsOf(group, i, packing);
      sizes[i] = pieces[i].size;
    }
    std::vector<Whole> wholes;
    wholes.reserve(count);
    for (size_t i = 0; i < count && parts_.any(); ++i) {
      if (!is_active(i)) continue;
      wholes.emplace_back(parts_, step, numbers.scalars, group.variables[i]->tensor()->shape(), &pieces[i]);
    }
    AddUp(workers, parts_, &wholes);
    const Line line(std::move(sizes), packing.is_used ? kChunk : kAlign);
    ForEachBlock(workers, line.blocks(), [&](int64_t block) {
      line.Block(block, [&](size_t i, int64_t begin, int64_t end) { Pass(step, pieces[i]).Run(begin, end); });
    });
    for (Whole& whole : wholes) whole.Store();
    return absl::OkStatus();
  }

 private:
  absl::Status CheckNumbers(const Numbers& numbers, int64_t count) const {
    const auto fits = [&](const auto& list) { return list.empty() || static_cast<int64_t>(list.size()) == count; };
    if (static_cast<int64_t>(numbers.scalars.size()) != scalars_) {
      return InvalidArgument("got ", numbers.scalars.size(), " scalars, this rule has ", scalars_);
    }
    if (!fits(numbers.scales)) return InvalidArgument("got ", numbers.scales.size(), " scales");
    if (!fits(numbers.decays)) return InvalidArgument("got ", numbers.decays.size(), " decays");
    if (!fits(numbers.active)) return InvalidArgument("got ", numbers.active.size(), " active");
    return numbers.options.size() == 3 ? absl::OkStatus() : InvalidArgument("options must be three");
  }

  // Whether kernels are launched for a step, instead of functions called on the host's memory.
  bool IsLaunched(const Group& group, const std::vector<Gradient>& gradients, bool is_packed) const {
    bool is_plain = group.others.empty();
    for (size_t i = 0; i < gradients.size() && is_plain; ++i) {
      const bool is_known = (gradients[i].IsDense() && powers_ == 0) || gradients[i].table != nullptr;
      is_plain = is_known && (group.IsWhole(i) || gradients[i].table == nullptr) && group.gpus[i] != nullptr &&
                 KernelOf(gradients[i], is_packed) != nullptr;
    }
    return is_plain && !gradients.empty();
  }

  // Functions on the host's memory cannot step variables on a GPU.
  absl::Status CheckIsOnHost(const Group& group, const Numbers& numbers) const {
    if (!numbers.controls.empty()) return absl::FailedPreconditionError("scales on a GPU are for launches");
    for (size_t i = 0; i < group.gpus.size(); ++i) {
      if (group.gpus[i] == nullptr) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "variable ", i, " of ", rule_, " is on a GPU, and no kernel was loaded there that takes its gradient. Set "
          "DTOPT_GPU=off, and make the optimizer and its functions again."));
    }
    return absl::OkStatus();
  }

  // That of state in few bits is for all dtypes of variables and gradients.
  const GpuKernel* KernelOf(const Gradient& gradient, bool is_packed) const {
    const std::string of_rows = gradient.table == nullptr ? "" : " rows";
    if (is_packed) return Gpus::Get().Find(absl::StrCat(rule_, " packed", of_rows), tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
    return Gpus::Get().Find(rule_ + of_rows, dtype_, gradient.values->dtype());
  }

  // Launches a step, as often as there are GPUs and dtypes of gradients, and brings parts of shards to the other GPUs that
  // have these.
  absl::Status Launch(const Group& group, const std::vector<Gradient>& gradients, const Numbers& numbers,
                      const PackingNumbers& packing) const {
    const GpuNumbers shared = Shared(group, numbers);
    using Key = std::tuple<const Gpu*, const GpuKernel*, std::vector<DtoptStorage>>;
    std::map<Key, std::pair<GpuNumbers, std::vector<GpuVariable>>> launches;
    for (size_t i = 0; i < group.variables.size(); ++i) {
      if (!numbers.active.empty() && !numbers.active[i]) continue;
      const Gpu& gpu = *group.gpus[i];
      const GpuKernel& kernel = *KernelOf(gradients[i], packing.is_used);
      GpuNumbers of_gpu = shared;
      if (!numbers.controls.empty()) of_gpu.control = static_cast<const double*>(numbers.controls[i]->data());
      GpuVariable of = OnGpu(group, gradients[i], numbers, i);
      if (packing.is_used) TF_RETURN_IF_ERROR(PackOnGpu(group, gradients[i], packing, i, &of_gpu, &of));
      if (group.IsWhole(i) || group.boxes[i].levels.empty()) {
        auto& launch = launches[{&gpu, &kernel, of_gpu.storages}];
        launch.first = of_gpu;
        launch.second.push_back(std::move(of));
      } else {
        const Tensor& model = *group.Model(i)->tensor();
        TF_RETURN_IF_ERROR(
            LaunchPartOn(gpu, kernel, group.boxes[i], *gradients[i].values, model, std::move(of), of_gpu));
      }
    }
    for (const auto& [where, launch] : launches) {
      TF_RETURN_IF_ERROR(LaunchOn(*std::get<0>(where), *std::get<1>(where), launch.second, launch.first));
    }
    return BringToReplicas(group, numbers);
  }

  // The numbers of a step on all GPUs.
  GpuNumbers Shared(const Group& group, const Numbers& numbers) const {
    GpuNumbers shared;
    shared.scalars = numbers.scalars.data();
    shared.limit = numbers.options[0];
    shared.average_weight = numbers.options[1];
    shared.value_weight = numbers.options[2];
    shared.overwrites = numbers.overwrite;
    shared.are_places = !numbers.controls.empty() && !numbers.scales.empty();
    if (group.roundings.empty()) return shared;
    shared.rounding_type = group.roundings[0]->tensor()->dtype() == tensorflow::DT_BFLOAT16 ? 1 : 2;
    return shared;
  }

  // Variable i as a launch takes it. Of a part with gaps, where its shard begins.
  GpuVariable OnGpu(const Group& group, const Gradient& gradient, const Numbers& numbers, size_t i) const {
    const bool is_whole = group.IsWhole(i);
    const int64_t first = is_whole || !group.boxes[i].levels.empty() ? 0 : group.boxes[i].first;
    const auto data = [](const Tensor& of, int64_t from = 0) {
      return static_cast<char*>(of.data()) + from * tensorflow::DataTypeSize(of.dtype());
    };
    const size_t count = group.variables.size();
    const Tensor& variable = *group.variables[i]->tensor();
    GpuVariable of;
    of.size = is_whole ? variable.NumElements() : group.boxes[i].Size();
    if (parts_.any()) of.grid = GridOf(parts_.by_rows, of.size, variable.shape());
    of.gradient = data(*gradient.values, first);
    of.variable = data(variable, group.roundings.empty() ? first : 0);
    if (!group.averages.empty()) of.average = data(*group.averages[i]->tensor());
    if (!group.roundings.empty()) of.rounding = data(*group.roundings[i]->tensor(), first);
    for (int64_t k = 0; k < slots_; ++k) of.slots.push_back(data(*group.slots[k * count + i]->tensor()));
    if (!numbers.scales.empty()) of.scale = numbers.scales[i];
    if (!numbers.decays.empty()) of.decay = numbers.decays[i];
    if (gradient.table != nullptr) {
      of.table = gradient.table->flat<int64_t>().data();
      of.given = gradient.table->NumElements();
      of.columns = of.given == 0 ? 0 : gradient.values->NumElements() / of.given;
      for (size_t k = 0; k < powers_; ++k) of.powers.push_back(data(*gradient.powers, k * gradient.values->NumElements()));
    }
    return of;
  }

  // How the arrays of variable i are stored: what all variables of a launch share, and what is its own.
  absl::Status PackOnGpu(const Group& group, const Gradient& gradient, const PackingNumbers& numbers, size_t i,
                         GpuNumbers* shared, GpuVariable* of) const {
    for (const Packing& packing : PackingsOf(group, i, numbers)) {
      shared->storages.push_back(packing.storage());
      shared->books.emplace_back();
      TF_RETURN_IF_ERROR(BooksOnGpus::Get().Find(*group.gpus[i], packing.book, &shared->books.back()));
      of->scales.push_back(packing.scales);
      of->keys.push_back(packing.key);
    }
    of->of_gradient = PackingOf(*gradient.values, false, 0).storage();
    return absl::OkStatus();
  }

  absl::Status BringToReplicas(const Group& group, const Numbers& numbers) const {
    const auto has_none = [](const std::vector<Var*>& replicas) { return replicas.empty(); };
    if (std::all_of(group.replicas.begin(), group.replicas.end(), has_none)) return absl::OkStatus();
    std::map<const Var*, CuStream> streams;
    for (size_t i = 0; i < group.variables.size(); ++i) streams[group.Model(i)] = group.gpus[i]->stream;
    const auto address = [](Var* of) { return reinterpret_cast<CuAddress>(of->tensor()->data()); };
    std::vector<GpuPart> parts;
    for (size_t i = 0; i < group.variables.size(); ++i) {
      if (group.replicas[i].empty() || (!numbers.active.empty() && !numbers.active[i])) continue;
      Var* const model = group.Model(i);
      const int64_t bytes = tensorflow::DataTypeSize(model->tensor()->dtype());
      parts.push_back({streams[model], address(model), &group.boxes[i], bytes});
      for (Var* replica : group.replicas[i]) parts.back().replicas.emplace_back(streams[replica], address(replica));
    }
    Gpus& all = Gpus::Get();
    const Problem problem = Exchange(all.driver(), all.events()).Run(parts);
    return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
  }

  // Everything that a caller can have wrong, before any value changes.
  absl::Status Check(const std::vector<Gradient>& gradients, const Group& group, bool is_packed) const {
    const int64_t count = gradients.size(), have = group.variables.size(), slots = group.slots.size();
    const int64_t averages = group.averages.size(), roundings = group.roundings.size();
    const int64_t of_each = slots_ + (is_packed ? CodedSlots(group, slots_) : 0);
    if (have != count || slots != count * of_each || (averages != 0 && averages != count) ||
        (roundings != 0 && roundings != count)) {
      return InvalidArgument("got ", have, " variables, ", slots, " slots, ", averages, " averages and ", roundings,
                             " roundings for ", count, " gradients; this rule has ", slots_, " slots of each variable");
    }
    if (is_packed) TF_RETURN_IF_ERROR(CheckPacking(gradients, group));
    if (!group.others.empty() && static_cast<int64_t>(group.others.size()) != count) {
      return InvalidArgument("got ", group.others.size(), " others");
    }
    for (int64_t i = 0; i < count; ++i) {
      const bool moves = group.others.empty() || group.others[i] == Others::kMove;
      if (parts_.any() && (!gradients[i].IsDense() || !group.IsWhole(i) || !moves)) {
        return InvalidArgument("the rule adds up over all of variable ", i, ", and is given a part");
      }
      TF_RETURN_IF_ERROR(CheckType(group.variables[i], "variable", i));
      const Tensor& model = *group.Model(i)->tensor();
      if (!group.Model(i)->is_initialized || !model.IsInitialized() || basics_[model.dtype()] == nullptr) {
        return InvalidArgument("the rounding of variable ", i, " does not fit it");
      }
      TF_RETURN_IF_ERROR(CheckGradient(gradients[i], group, i));
      const tensorflow::TensorShape& shape = model.shape();
      if (parts_.by_rows && shape.dims() < 2) return InvalidArgument("variable ", i, " is no matrix");
      RowBox part;
      if (!group.others.empty() && group.others[i] != Others::kMove && !PartOf(group, i, &part)) {
        return InvalidArgument("the part of variable ", i, " is not one of rows");
      }
      for (Var* replica : group.replicas[i]) {
        const Tensor& tensor = *replica->tensor();
        const bool fits = replica->is_initialized && tensor.IsInitialized() && tensor.dtype() == model.dtype();
        if (!fits || tensor.shape() != shape) return InvalidArgument("a replica of variable ", i, " does not fit it");
      }
      for (int64_t k = 0; k < slots_; ++k) {
        Var* slot = group.slots[k * count + i];
        const int64_t of = ShapeOf(k);
        if (is_packed) continue;
        TF_RETURN_IF_ERROR(of == kFull ? CheckSlot(slot, group, "a slot of variable", i) : CheckSmall(slot, of, shape, i));
      }
      if (averages != 0) TF_RETURN_IF_ERROR(CheckSlot(group.averages[i], group, "the average of variable", i));
      if (roundings != 0) TF_RETURN_IF_ERROR(CheckSlot(group.variables[i], group, "the master copy of variable", i));
    }
    return absl::OkStatus();
  }

  // Slots that are packed may have types of their own. Blocks of codes are cut neither by shards nor by rows.
  absl::Status CheckPacking(const std::vector<Gradient>& gradients, const Group& group) const {
    const size_t count = gradients.size();
    const int64_t coded = CodedSlots(group, slots_);
    if (wide_update_ == nullptr || basics_[dtype_]->wide != sizeof(float) || parts_.any()) {
      return InvalidArgument("state in few bits is of rules that treat elements by themselves, in float32");
    }
    for (size_t i = 0; i < count; ++i) {
      const bool moves = group.others.empty() || group.others[i] == Others::kMove;
      if (!group.IsWhole(i) || !group.replicas[i].empty() || (coded > 0 && (!gradients[i].IsDense() || !moves))) {
        return InvalidArgument("variable ", i, " has state in few bits, and is updated in part");
      }
      const Tensor& variable = *group.Model(i)->tensor();
      int64_t found = 0;
      for (int64_t k = 0; k < slots_ + coded; ++k) {
        const Var* slot = group.slots[k * count + i];
        const Tensor& tensor = *const_cast<Var*>(slot)->tensor();
        if (!slot->is_initialized || !tensor.IsInitialized()) {
          return absl::FailedPreconditionError(absl::StrCat("a slot of variable ", i, " is uninitialized"));
        }
        const bool is_scale = k >= slots_, is_coded = !is_scale && Books::Of(tensor.dtype()) != nullptr;
        const Basics* stored = basics_[tensor.dtype()];
        const bool is_known = is_scale ? tensor.dtype() == tensorflow::DT_FLOAT
                                       : is_coded || (stored != nullptr && stored->wide == sizeof(float));
        const int64_t blocks = (variable.NumElements() + kChunk - 1) / kChunk;
        const bool fits = is_scale ? tensor.NumElements() == blocks : tensor.shape() == variable.shape();
        if (!is_known || !fits) return InvalidArgument("slot ", k, " of variable ", i, " does not fit it");
        found += is_coded;
      }
      if (found != coded) return InvalidArgument("other slots of variable ", i, " are codes than of the first one");
    }
    return absl::OkStatus();
  }

  Packing PackingOf(const Tensor& tensor, bool is_random, uint32_t key) const {
    Packing packing;
    packing.book = Books::Of(tensor.dtype());
    packing.element = tensorflow::DataTypeSize(tensor.dtype());
    if (packing.book == nullptr && tensor.dtype() != tensorflow::DT_FLOAT) packing.basics = basics_[tensor.dtype()];
    packing.is_random = is_random && tensor.dtype() == tensorflow::DT_BFLOAT16;
    packing.key = key;
    return packing;
  }

  // Of the slots of variable i, then of the variable.
  std::vector<Packing> PackingsOf(const Group& group, size_t i, const PackingNumbers& numbers) const {
    const size_t count = group.variables.size();
    std::vector<Packing> packings;
    int64_t next = slots_;
    for (int64_t k = 0; k < slots_; ++k) {
      packings.push_back(PackingOf(*group.slots[k * count + i]->tensor(), numbers.is_random, numbers.Key(i, k)));
      if (packings.back().book == nullptr) continue;
      packings.back().scales = group.slots[next++ * count + i]->tensor()->flat<float>().data();
    }
    packings.push_back(PackingOf(*group.variables[i]->tensor(), numbers.rounds_variables, numbers.Key(i, slots_)));
    return packings;
  }

  absl::Status CheckType(Var* variable, const char* what, int64_t i) const {
    const Tensor& tensor = *variable->tensor();
    if (!variable->is_initialized || !tensor.IsInitialized()) {
      return absl::FailedPreconditionError(absl::StrCat(what, " ", i, " is uninitialized"));
    }
    if (tensor.dtype() == dtype_) return absl::OkStatus();
    return InvalidArgument(what, " ", i, " is ", DataTypeString(tensor.dtype()), ", this op updates ",
                           DataTypeString(dtype_));
  }

  absl::Status CheckGradient(const Gradient& gradient, const Group& group, int64_t i) const {
    const tensorflow::TensorShape& shape = group.Model(i)->tensor()->shape();
    const Tensor& values = *gradient.values;
    const Basics* given = basics_[values.dtype()];
    if (given == nullptr || given->wide != basics_[dtype_]->wide) {
      return InvalidArgument("variable ", i, " is ", DataTypeString(dtype_), ", its gradient ",
                             DataTypeString(values.dtype()));
    }
    const bool has_powers = gradient.table != nullptr
                                ? gradient.powers != nullptr && basics_[gradient.powers->dtype()] == given &&
                                      gradient.powers->NumElements() == static_cast<int64_t>(powers_) * values.NumElements()
                                : gradient.sorted != nullptr && gradient.sorted->power_count == powers_;
    if (powers_ > 0 && !has_powers) {
      return InvalidArgument("the rule needs more of the gradient of variable ", i, " than its sum");
    }
    if (gradient.table != nullptr) {
      const int64_t rows = shape.dims() == 0 ? 0 : shape.dim_size(0);
      const int64_t columns = rows == 0 ? 0 : shape.num_elements() / rows;
      if (values.NumElements() == gradient.table->NumElements() * columns) return absl::OkStatus();
      return InvalidArgument("variable ", i, " has shape ", shape.DebugString(), ", the rows of its gradient ",
                             values.shape().DebugString());
    }
    if (gradient.IsDense()) {
      if (values.shape() == shape) return absl::OkStatus();
      return InvalidArgument("variable ", i, " has shape ", shape.DebugString(), ", its gradient ",
                             values.shape().DebugString());
    }
    RowBox part;
    if (!PartOf(group, i, &part)) return InvalidArgument("the part of variable ", i, " is not one of rows");
    const int64_t count = gradient.end() - gradient.begin(), columns = ColumnsOf(gradient, part);
    const bool fits = gradient.sorted != nullptr ? count == 0 || gradient.sorted->columns == columns
                                                 : count * columns == values.NumElements();
    if (!fits || gradient.region.first_column + part.columns > columns) {
      return InvalidArgument("variable ", i, " has shape ", shape.DebugString(), ", the rows of its gradient ",
                             values.shape().DebugString());
    }
    const int64_t* rows = gradient.begin();
    const bool is_whole = gradient.region.columns == 0;
    for (int64_t k = 0; k < count; ++k) {
      if ((is_whole && rows[k] >= shape.dim_size(0)) || rows[k] < (k == 0 ? 0 : rows[k - 1] + 1)) {
        return InvalidArgument("the gradient of variable ", i, " is for row ", rows[k], ", the variable has ",
                               shape.dim_size(0), " rows");
      }
    }
    return absl::OkStatus();
  }

  static int64_t ColumnsOf(const Gradient& gradient, const RowBox& part) {
    return gradient.region.columns == 0 ? part.stride : gradient.region.columns;
  }

  int64_t ShapeOf(int64_t k) const {
    int64_t shape = kFull;
    for (int64_t end = shapes_[kFull]; k >= end; end += shapes_[shape]) ++shape;
    return shape;
  }

  // A slot of rows, of columns, or of one number.
  absl::Status CheckSmall(Var* slot, int64_t of, const tensorflow::TensorShape& variable, int64_t i) const {
    TF_RETURN_IF_ERROR(CheckType(slot, "a slot of variable", i));
    const tensorflow::TensorShape& shape = slot->tensor()->shape();
    tensorflow::TensorShape wanted;
    if (of != kOne) {
      wanted = variable;
      wanted.RemoveDim(variable.dims() - (of == kRows ? 1 : 2));
    }
    if (shape == wanted) return absl::OkStatus();
    return InvalidArgument("a slot of variable ", i, " has shape ", shape.DebugString(), ", not ", wanted.DebugString());
  }

  // A slot or average: like its variable, or as large as the box.
  absl::Status CheckSlot(Var* slot, const Group& group, const char* what, int64_t i) const {
    TF_RETURN_IF_ERROR(CheckType(slot, what, i));
    const Tensor &variable = *group.Model(i)->tensor(), &tensor = *slot->tensor();
    if (group.IsWhole(i)) {
      if (tensor.shape() == variable.shape()) return absl::OkStatus();
      return InvalidArgument(what, " ", i, " has shape ", tensor.shape().DebugString(), ", the variable ",
                             variable.shape().DebugString());
    }
    const Box& box = group.boxes[i];
    const int64_t size = tensor.NumElements();
    if (size == box.Size() && box.Last() < variable.NumElements()) return absl::OkStatus();
    return InvalidArgument(what, " ", i, " has ", size, " elements, its box ", box.Size(), " up to ", box.Last(),
                           " of ", variable.NumElements());
  }

  void Open(const Gradient& gradient, const Group& group, size_t i, const Numbers& numbers, Piece* piece) const {
    const Tensor& variable = *group.variables[i]->tensor();
    const bool whole = group.IsWhole(i);
    piece->size = whole ? variable.NumElements() : group.boxes[i].Size();
    const auto data = [](Var* of) { return static_cast<char*>(of->tensor()->data()); };
    const size_t count = group.variables.size();
    for (int64_t k = shapes_[kFull]; k < slots_; ++k) {
      const int64_t of = ShapeOf(k);
      auto& list = of == kRows ? piece->row_slots : of == kColumns ? piece->column_slots : piece->singles;
      list.push_back(data(group.slots[k * count + i]));
    }
    if (piece->size == 0) return;
    piece->box = whole ? nullptr : &group.boxes[i];
    piece->gradient = static_cast<const char*>(gradient.values->data());
    piece->given = basics_[gradient.values->dtype()];
    piece->variable = data(group.variables[i]);
    piece->scalars = numbers.scalars.data();
    for (int64_t k = 0; k < shapes_[kFull]; ++k) piece->slots.push_back(data(group.slots[k * count + i]));
    if (!group.averages.empty()) piece->average = data(group.averages[i]);
    if (!group.roundings.empty()) {
      piece->rounding = data(group.roundings[i]);
      piece->rounded = basics_[group.roundings[i]->tensor()->dtype()];
      piece->is_part = !whole;
    }
    for (Var* replica : group.replicas[i]) piece->replicas.push_back(data(replica));
    if (!numbers.scales.empty()) piece->scale = numbers.scales[i];
    if (!numbers.decays.empty()) piece->decay = numbers.decays[i];
    if (!group.others.empty()) piece->others = group.others[i];
    if (gradient.IsDense() && piece->others == Others::kMove) return;
    PartOf(group, i, &piece->part);
    if (!gradient.IsDense()) return OpenRows(gradient, numbers, piece);
    piece->gradient += piece->part.first_row * piece->part.stride * piece->given->element;
    piece->stride = piece->part.stride;
    piece->first_column = piece->part.first_column;
  }

  // Only the rows of this part. Where those without a gradient stay as they are, whatever follows the rule included,
  // nothing else is visited.
  void OpenRows(const Gradient& gradient, const Numbers& numbers, Piece* piece) const {
    static constexpr int64_t kNone = 0;  // where there are no rows there is no buffer, and null would mean a dense gradient
    const int64_t *all = gradient.begin(), *end = gradient.end();
    if (all == end) all = end = &kNone;
    piece->first_row = gradient.region.first_row;
    piece->first_column = gradient.region.columns == 0 ? piece->part.first_column : gradient.region.first_column;
    if (gradient.region.columns == 0) piece->first_row = piece->part.first_row;
    piece->rows = std::lower_bound(all, end, piece->first_row);
    piece->count = std::lower_bound(piece->rows, end, piece->first_row + piece->part.rows) - piece->rows;
    piece->stride = ColumnsOf(gradient, piece->part);
    piece->zeros_count = !gradient.is_mean;
    if (gradient.sorted != nullptr) {
      piece->at = gradient.sorted->at.data() + (piece->rows - all);
      piece->power_count = powers_;
      const int64_t before = (piece->rows - all) * powers_ * piece->stride * piece->given->wide;
      if (powers_ > 0) piece->powers = static_cast<const char*>(gradient.sorted->powers.data()) + before;
    } else {
      piece->gradient += (piece->rows - all) * piece->stride * piece->given->element;
    }
    const bool stay = piece->others == Others::kStay ||
                      (piece->others == Others::kMove && numbers.is_identity_at_zero && piece->decay == 1);
    if (!stay || piece->average != nullptr) return;
    piece->listed = true;
    piece->size = piece->count * piece->part.columns;
  }

  std::string rule_;
  DtoptUpdate update_ = nullptr, wide_update_ = nullptr;
  Coding coding_;
  Parts parts_;
  DataType dtype_;
  std::vector<int64_t> shapes_;  // how many slots there are of each
  int64_t slots_ = 0, scalars_ = 0;
  size_t powers_ = 0;
  AllBasics basics_;
};

// The sum of squares of each tensor.
inline absl::Status SquareSums(const Workers& workers, const std::vector<const Tensor*>& tensors,
                               const AllBasics& basics, double* sums) {
  std::vector<int64_t> sizes;
  for (const Tensor* tensor : tensors) {
    if (basics[tensor->dtype()] == nullptr) return InvalidArgument("no sums of ", DataTypeString(tensor->dtype()));
    sizes.push_back(tensor->NumElements());
  }
  const Line line(std::move(sizes), kSquares);
  std::vector<double> parts(line.length() / kSquares);
  ForEachBlock(workers, line.blocks(), [&](int64_t block) {
    line.Block(block, [&](size_t i, int64_t begin, int64_t end) {
      const Basics& of = *basics[tensors[i]->dtype()];
      const char* values = static_cast<const char*>(tensors[i]->data());
      for (; begin < end; begin += kSquares) {
        const int64_t size = std::min(kSquares, end - begin);
        parts[(line.start(i) + begin) / kSquares] = of.squares(values + begin * of.element, size);
      }
    });
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t first = line.start(i) / kSquares, runs = line.start(i + 1) / kSquares - first;
    sums[i] = SumInLanes(runs, [&](int64_t k) { return parts[first + k]; });
  }
  return absl::OkStatus();
}

}  // namespace dtopt

#endif  // DTOPT_STEP_H_
