// The gradients of a step, read without Python: to check and unpack a DTensor from there takes several microseconds for
// each tensor and device, longer than to update a small one.

#ifndef DTOPT_GRADIENTS_H_
#define DTOPT_GRADIENTS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
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
using StatusPtr = std::unique_ptr<TF_Status, StatusDeleter>;
inline StatusPtr NewStatus() { return StatusPtr(TF_NewStatus()); }
inline bool IsOk(const StatusPtr& status) { return TF_GetCode(status.get()) == TF_OK; }

// DTensor's device is the only custom one that tensors with a layout are on.
inline bool IsOnMesh(const Runtime& runtime, TFE_TensorHandle* handle) {
  const StatusPtr status = NewStatus();
  const char* device = runtime.device_of(handle, status.get());
  return IsOk(status) && device != nullptr && std::strstr(device, "device:CUSTOM:") != nullptr;
}

// The object behind a DTensor, if it is known what that is; null: ask DTensor's device.
inline const void* InsideOf(const Runtime& runtime, TFE_TensorHandle* handle) {
  if (runtime.dtensor_class == nullptr) return nullptr;
  const StatusPtr status = NewStatus();
  const void* object = runtime.object_of(handle, status.get());
  if (!IsOk(status) || object == nullptr) return nullptr;
  constexpr int kBefore = 2;  // entries of the table that stand before the first function
  return *static_cast<const void* const* const*>(object) == runtime.dtensor_class + kBefore ? object : nullptr;
}

inline bool HasLayout(const Runtime& runtime, TFE_TensorHandle* handle, const char* expected) {
  if (runtime.dtensor_device == nullptr || !IsOnMesh(runtime, handle)) return false;
  if (const void* object = InsideOf(runtime, handle)) return runtime.text_of(runtime.layout_of(object)) == expected;
  const StatusPtr status = NewStatus();
  const std::string layout = runtime.fetch_layout(runtime.context, handle, runtime.dtensor_device, status.get());
  return IsOk(status) && layout == expected;
}

inline bool Fits(const Runtime& runtime, const void* object, const Expected& expected) {
  if (!runtime.is_eager_tensor(object)) return false;
  TFE_TensorHandle* handle = runtime.handle_of(object);
  if (runtime.dtype_of(handle) != expected.dtype) return false;
  const StatusPtr status = NewStatus();
  if (runtime.rank_of(handle, status.get()) != expected.rank || !IsOk(status)) return false;
  for (int64_t dim = 0; dim < expected.rank; ++dim) {
    if (runtime.dim_of(handle, dim, status.get()) != expected.shape[dim] || !IsOk(status)) return false;
  }
  return expected.layout == nullptr ? !IsOnMesh(runtime, handle) : HasLayout(runtime, handle, expected.layout);
}

constexpr int64_t kRange = 128;      // gradients that are worth a thread of their own
constexpr int64_t kMostThreads = 8;

// run(begin, end) for all of 0, ..., count - 1, each thread with a range. To read a DTensor is to compare its mesh and
// write out its layout, which the threads of TensorFlow's pool cannot be asked for outside of an op.
template <typename Run>
void ForRanges(int64_t count, const Run& run) {
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), kMostThreads));
  const int64_t ranges = std::max<int64_t>(1, std::min(most, count / kRange));
  std::vector<std::thread> others;
  for (int64_t i = 1; i < ranges; ++i) {
    const int64_t begin = i * count / ranges, end = (i + 1) * count / ranges;
    try {
      others.emplace_back(run, begin, end);
    } catch (const std::system_error&) {  // no more threads to be had
      run(begin, end);
    }
  }
  run(0, count / ranges);
  for (std::thread& other : others) other.join();
}

// The local tensors of one step's gradients, in the order of variables and of the devices of each.
class Held {
 public:
  std::vector<tensorflow::Tensor> tensors;

  absl::Status Read(const Runtime& runtime, const void* const* objects, int64_t count) {
    std::vector<std::vector<tensorflow::Tensor>> parts(count);
    std::vector<absl::Status> read(count);
    ForRanges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) read[i] = ReadOne(runtime, objects[i], &parts[i]);
    });
    for (int64_t i = 0; i < count; ++i) {
      if (!read[i].ok()) return read[i];
      for (tensorflow::Tensor& part : parts[i]) tensors.push_back(std::move(part));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status ReadOne(const Runtime& runtime, const void* object, std::vector<tensorflow::Tensor>* parts) {
    TFE_TensorHandle* handle = runtime.handle_of(object);
    if (!IsOnMesh(runtime, handle)) return ReadLocal(runtime, handle, parts);
    if (const void* inside = InsideOf(runtime, handle)) {
      for (size_t k = 0; k < runtime.count_of(inside); ++k) {
        const absl::Status read = ReadLocal(runtime, runtime.part_of(inside, k), parts);
        if (!read.ok()) return read;
      }
      return absl::OkStatus();
    }
    const StatusPtr status = NewStatus();
    const auto unpacked = runtime.unpack(runtime.context, handle, runtime.dtensor_device, status.get());
    absl::Status read = IsOk(status) ? absl::OkStatus() : absl::InternalError(TF_Message(status.get()));
    for (TFE_TensorHandle* part : unpacked) {
      if (part == nullptr) continue;
      if (read.ok()) read = ReadLocal(runtime, part, parts);
      runtime.delete_handle(part);
    }
    return read;
  }

  // On a CPU device the buffer is shared; what is elsewhere no op here can use, and an empty tensor takes its place.
  static absl::Status ReadLocal(const Runtime& runtime, TFE_TensorHandle* handle,
                                std::vector<tensorflow::Tensor>* parts) {
    const StatusPtr status = NewStatus();
    const char* device = runtime.device_of(handle, status.get());
    if (!IsOk(status)) return absl::InternalError(TF_Message(status.get()));
    if (device == nullptr || std::strstr(device, "CPU:") == nullptr) {
      parts->emplace_back();
      return absl::OkStatus();
    }
    TF_Tensor* resolved = runtime.resolve(handle, status.get());
    if (!IsOk(status)) return absl::InternalError(TF_Message(status.get()));
    parts->emplace_back();
    const absl::Status copied = tensorflow::TF_TensorToTensor(resolved, &parts->back());
    TF_DeleteTensor(resolved);
    return copied;
  }
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

// The positions of the objects that are not as expected.
inline std::vector<int64_t> Misfits(const Runtime& runtime, const std::vector<const void*>& objects,
                                    const std::vector<const Expected*>& expected) {
  const int64_t count = objects.size();
  std::vector<char> fits(count);
  ForRanges(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fits[i] = Fits(runtime, objects[i], *expected[i]);
  });
  std::vector<int64_t> found;
  for (int64_t i = 0; i < count; ++i) {
    if (!fits[i]) found.push_back(i);
  }
  return found;
}

}  // namespace dtopt

#endif  // DTOPT_GRADIENTS_H_
