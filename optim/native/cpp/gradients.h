// The gradients of a step, read without Python: to check and unpack a DTensor from there takes several microseconds for
// each tensor and device, longer than to update a small one.

#ifndef DTOPT_GRADIENTS_H_
#define DTOPT_GRADIENTS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/c/eager/c_api.h"
#include "tensorflow/c/tf_tensor_internal.h"
#include "tensorflow/core/framework/tensor.h"

namespace dtopt {

// What TensorFlow has in Python: how an eager tensor is taken apart, and where tensors are.
struct Runtime {
  bool (*is_eager_tensor)(const void* object);
  TFE_TensorHandle* (*handle_of)(const void* object);
  // As in dtensor_device.h, which TensorFlow's wheel leaves out.
  std::vector<TFE_TensorHandle*> (*unpack)(TFE_Context* context, TFE_TensorHandle* input, void* device,
                                           TF_Status* status);
  std::string (*fetch_layout)(TFE_Context* context, TFE_TensorHandle* input, void* device, TF_Status* status);
  // Of c_api.h; no library that a kernel is linked with has them in every version.
  void (*delete_handle)(TFE_TensorHandle*);
  TF_DataType (*dtype_of)(TFE_TensorHandle*);
  const char* (*device_of)(TFE_TensorHandle*, TF_Status*);
  int64_t (*dim_of)(TFE_TensorHandle*, int, TF_Status*);
  int (*rank_of)(TFE_TensorHandle*, TF_Status*);
  TF_Tensor* (*resolve)(TFE_TensorHandle*, TF_Status*);
  // TensorHandle::Tensor: what a handle has, wherever that is, without a copy; null where TensorFlow has no such function.
  absl::Status (*tensor_of)(const TFE_TensorHandle*, const tensorflow::Tensor**);
  // Of a DTensor's own class (TensorWithLayoutTf), null where TensorFlow has no such functions: Unpack looks for the mesh
  // of each tensor among all meshes, which it compares as protocol buffers, and takes three times as long as all else.
  const void* const* dtensor_class;  // its virtual functions
  void* (*object_of)(TFE_TensorHandle*, TF_Status*);
  size_t (*count_of)(const void* object);
  TFE_TensorHandle* (*part_of)(const void* object, size_t k);  // which the object keeps
  const void* (*layout_of)(const void* object);
  std::string (*text_of)(const void* layout);
  TFE_Context* context;
  void* dtensor_device;  // null as long as DTensor was not used
};

// What a gradient has to be like to be used as it is.
struct Expected {
  const char* layout;  // null: not on a mesh
  int64_t dtype, rank;
  const int64_t* shape;  // of the whole tensor
};

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};

// Takes eager tensors apart, in one thread.
class Reader {
 public:
  explicit Reader(const Runtime& runtime) : runtime_(runtime), status_(TF_NewStatus()) {}

  // Whether a tensor is as expected; if so, its parts on the local devices are added, or it is said in `read` why not.
  bool TakeIf(const void* object, const Expected& expected, std::vector<tensorflow::Tensor>* parts, absl::Status* read) {
    if (!runtime_.is_eager_tensor(object)) return false;
    TFE_TensorHandle* handle = runtime_.handle_of(object);
    if (runtime_.dtype_of(handle) != expected.dtype || !HasShape(handle, expected)) return false;
    const bool on_mesh = IsOnMesh(handle);
    if (on_mesh != (expected.layout != nullptr)) return false;
    const void* inside = on_mesh ? InsideOf(handle) : nullptr;
    if (on_mesh && !HasLayout(handle, inside, expected.layout)) return false;
    *read = on_mesh ? TakeParts(handle, inside, parts) : TakeLocal(handle, parts);
    return true;
  }

  absl::Status Take(const void* object, std::vector<tensorflow::Tensor>* parts) {
    if (!runtime_.is_eager_tensor(object)) return absl::InvalidArgumentError("it is no eager tensor");
    TFE_TensorHandle* handle = runtime_.handle_of(object);
    return IsOnMesh(handle) ? TakeParts(handle, InsideOf(handle), parts) : TakeLocal(handle, parts);
  }

 private:
  bool IsOk() const { return TF_GetCode(status_.get()) == TF_OK; }

  absl::Status Error() {
    absl::Status error = absl::InternalError(TF_Message(status_.get()));
    TF_SetStatus(status_.get(), TF_OK, "");
    return error;
  }

  // What could not be asked for is not as expected.
  bool Failed() {
    if (IsOk()) return false;
    TF_SetStatus(status_.get(), TF_OK, "");
    return true;
  }

  bool HasShape(TFE_TensorHandle* handle, const Expected& expected) {
    const int64_t rank = runtime_.rank_of(handle, status_.get());
    if (Failed() || rank != expected.rank) return false;
    for (int64_t dim = 0; dim < rank; ++dim) {
      const int64_t size = runtime_.dim_of(handle, dim, status_.get());
      if (Failed() || size != expected.shape[dim]) return false;
    }
    return true;
  }

  // DTensor's device is the only custom one that tensors with a layout are on.
  bool IsOnMesh(TFE_TensorHandle* handle) {
    const char* device = runtime_.device_of(handle, status_.get());
    return !Failed() && device != nullptr && std::strstr(device, "device:CUSTOM:") != nullptr;
  }

  // The object behind a DTensor, if it is known what that is; null: ask DTensor's device.
  const void* InsideOf(TFE_TensorHandle* handle) {
    if (runtime_.dtensor_class == nullptr) return nullptr;
    const void* object = runtime_.object_of(handle, status_.get());
    if (Failed() || object == nullptr) return nullptr;
    constexpr int kBefore = 2;  // entries of the table that stand before the first function
    return *static_cast<const void* const* const*>(object) == runtime_.dtensor_class + kBefore ? object : nullptr;
  }

  bool HasLayout(TFE_TensorHandle* handle, const void* inside, const char* expected) {
    if (runtime_.dtensor_device == nullptr) return false;
    if (inside != nullptr) return runtime_.text_of(runtime_.layout_of(inside)) == expected;
    const std::string layout =
        runtime_.fetch_layout(runtime_.context, handle, runtime_.dtensor_device, status_.get());
    return !Failed() && layout == expected;
  }

  absl::Status TakeParts(TFE_TensorHandle* handle, const void* inside, std::vector<tensorflow::Tensor>* parts) {
    if (inside != nullptr) {
      for (size_t k = 0; k < runtime_.count_of(inside); ++k) {
        const absl::Status taken = TakeLocal(runtime_.part_of(inside, k), parts);
        if (!taken.ok()) return taken;
      }
      return absl::OkStatus();
    }
    const auto unpacked = runtime_.unpack(runtime_.context, handle, runtime_.dtensor_device, status_.get());
    absl::Status taken = IsOk() ? absl::OkStatus() : Error();
    for (TFE_TensorHandle* part : unpacked) {
      if (part == nullptr) continue;
      if (taken.ok()) taken = TakeLocal(part, parts);
      runtime_.delete_handle(part);
    }
    return taken;
  }

  // On a CPU or GPU device the buffer is shared; what is elsewhere no op here can use, and an empty tensor takes its place.
  absl::Status TakeLocal(TFE_TensorHandle* handle, std::vector<tensorflow::Tensor>* parts) {
    const char* device = runtime_.device_of(handle, status_.get());
    if (!IsOk()) return Error();
    parts->emplace_back();
    const bool on_cpu = device != nullptr && std::strstr(device, "CPU:") != nullptr;
    const bool on_gpu = device != nullptr && std::strstr(device, "GPU:") != nullptr;
    if (runtime_.tensor_of != nullptr && (on_cpu || on_gpu)) {
      const tensorflow::Tensor* tensor = nullptr;
      const absl::Status found = runtime_.tensor_of(handle, &tensor);
      if (found.ok()) parts->back() = *tensor;
      return found;
    }
    if (!on_cpu) return absl::OkStatus();
    TF_Tensor* resolved = runtime_.resolve(handle, status_.get());
    if (!IsOk()) return Error();
    const absl::Status copied = tensorflow::TF_TensorToTensor(resolved, &parts->back());
    TF_DeleteTensor(resolved);
    return copied;
  }

  const Runtime& runtime_;
  const std::unique_ptr<TF_Status, StatusDeleter> status_;
};

constexpr int64_t kRange = 128;      // gradients that are worth a thread of their own
constexpr int64_t kMostThreads = 8;

// run(range, begin, end) for all of 0, ..., count - 1, each thread with a range of them; the ranges are `ranges` at most.
// To read a DTensor is to write out its layout, which the threads of TensorFlow's pool cannot be asked for outside of an
// op.
template <typename Run>
void ForRanges(int64_t count, int64_t ranges, const Run& run) {
  std::vector<std::thread> others;
  for (int64_t i = 1; i < ranges; ++i) {
    const int64_t begin = i * count / ranges, end = (i + 1) * count / ranges;
    try {
      others.emplace_back(run, i, begin, end);
    } catch (const std::system_error&) {  // no more threads to be had
      run(i, begin, end);
    }
  }
  run(0, 0, count / ranges);
  for (std::thread& other : others) other.join();
}

inline int64_t RangesOf(int64_t count) {
  if (count < 2 * kRange) return 1;  // the system is asked how many processors there are
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), kMostThreads));
  return std::min(most, count / kRange);
}

struct SortedRows;  // sorted.h
class Verdict;      // driver.h

// The local tensors of one step's gradients, in the order of variables and of the devices of each.
class Held {
 public:
  std::vector<tensorflow::Tensor> tensors;
  std::shared_ptr<const SortedRows> sorted;  // of IndexedSlices that were sorted: `SortHeld`
  std::shared_ptr<Verdict> verdict;          // of what `Control` made: not 0 if the step is left out

  // expected: what each is to be like, or null. misfits: the positions of those that are not; where there are any, the
  // tensors are of no use.
  absl::Status Read(const Runtime& runtime, const std::vector<const void*>& objects,
                    const Expected* expected, std::vector<int64_t>* misfits) {
    const int64_t ranges = RangesOf(objects.size());
    std::vector<Range> found(ranges);
    ForRanges(objects.size(), ranges, [&](int64_t range, int64_t begin, int64_t end) {
      found[range].Read(runtime, objects, expected, begin, end);
    });
    for (Range& range : found) {
      if (!range.status.ok()) return range.status;
      misfits->insert(misfits->end(), range.misfits.begin(), range.misfits.end());
      std::move(range.tensors.begin(), range.tensors.end(), std::back_inserter(tensors));
    }
    return absl::OkStatus();
  }

 private:
  struct Range {
    std::vector<tensorflow::Tensor> tensors;
    std::vector<int64_t> misfits;
    absl::Status status;

    void Read(const Runtime& runtime, const std::vector<const void*>& objects,
              const Expected* expected, int64_t begin, int64_t end) {
      Reader reader(runtime);
      for (int64_t i = begin; i < end && status.ok(); ++i) {
        if (expected == nullptr) {
          status = reader.Take(objects[i], &tensors);
        } else if (!reader.TakeIf(objects[i], expected[i], &tensors, &status)) {
          misfits.push_back(i);
        }
      }
    }
  };
};

// What is held, by number, until it is dropped.
class Holding {
 public:
  static int64_t Add(std::shared_ptr<Held> held) {
    std::lock_guard<std::mutex> lock(mutex());
    const int64_t number = next()++;
    all().emplace(number, std::move(held));
    return number;
  }

  static std::shared_ptr<Held> Find(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex());
    const auto found = all().find(number);
    return found == all().end() ? nullptr : found->second;
  }

  static void Drop(int64_t number) {
    std::shared_ptr<Held> dropped;  // destroyed after the lock is gone
    std::lock_guard<std::mutex> lock(mutex());
    const auto found = all().find(number);
    if (found == all().end()) return;
    dropped = std::move(found->second);
    all().erase(found);
  }

 private:
  using All = std::map<int64_t, std::shared_ptr<Held>>;
  // Never destroyed, like the Registry of groups.
  static std::mutex& mutex() { static auto* it = new std::mutex; return *it; }
  static All& all() { static auto* it = new All; return *it; }
  static int64_t& next() { static auto* it = new int64_t(0); return *it; }
};

}  // namespace dtopt

#endif  // DTOPT_GRADIENTS_H_
