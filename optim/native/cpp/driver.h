// The functions of CUDA's driver that a step needs, found at run time: nothing of CUDA is needed to compile this, and
// without a GPU nothing of it is loaded.

#ifndef DTOPT_DRIVER_H_
#define DTOPT_DRIVER_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtopt {

// What went wrong; empty if nothing did.
using Problem = std::string;

// Handles of the driver, and what its functions return: 0, or the number of an error.
using CuContext = void*;
using CuModule = void*;
using CuFunction = void*;
using CuStream = void*;
using CuEvent = void*;
using CuAddress = uint64_t;
using CuResult = int;

// A copy of rows between contexts, or within one: CUDA_MEMCPY3D_PEER.
struct CuRows {
  size_t x = 0, y = 0, z = 0, level = 0;
  int memory = 2;  // CU_MEMORYTYPE_DEVICE
  const void* host = nullptr;
  CuAddress address = 0;
  void* array = nullptr;
  CuContext context = nullptr;
  size_t pitch = 0, height = 0;  // bytes from one row to the next, and rows
};
struct CuCopy {
  CuRows from, to;
  size_t width = 0, height = 0, depth = 1;  // of what is copied: bytes of a row, and rows
};

constexpr int kLeastDriver = 12010;  // kernels have arguments of more than 4 KB from CUDA 12.1 on
constexpr unsigned kNoTiming = 2;     // of an event, which is then cheaper

class Driver {
 public:
  CuResult (*version)(int* version) = nullptr;
  CuResult (*stream_context)(CuStream stream, CuContext* context) = nullptr;
  CuResult (*push)(CuContext context) = nullptr;
  CuResult (*pop)(CuContext* context) = nullptr;
  CuResult (*load)(CuModule* module, const void* image, unsigned count, int* options, void** values) = nullptr;
  CuResult (*function)(CuFunction* function, CuModule module, const char* name) = nullptr;
  CuResult (*launch)(CuFunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                     unsigned threads_z, unsigned shared_bytes, CuStream stream, void** arguments, void** more) = nullptr;
  CuResult (*copy)(CuAddress to, CuAddress from, size_t bytes, CuStream stream) = nullptr;
  CuResult (*copy_in)(CuAddress to, const void* from, size_t bytes, CuStream stream) = nullptr;  // from the host
  CuResult (*copy_between)(CuAddress to, CuContext of_to, CuAddress from, CuContext of_from, size_t bytes,
                           CuStream stream) = nullptr;
  CuResult (*copy_rows)(const CuCopy* copy, CuStream stream) = nullptr;
  CuResult (*fill)(CuAddress to, unsigned char byte, size_t bytes, CuStream stream) = nullptr;
  CuResult (*host_memory)(void** memory, size_t bytes) = nullptr;  // which kernels write to, too
  CuResult (*make_event)(CuEvent* event, unsigned flags) = nullptr;
  CuResult (*record)(CuEvent event, CuStream stream) = nullptr;
  CuResult (*wait)(CuEvent event) = nullptr;
  CuResult (*wait_on_gpu)(CuStream stream, CuEvent event, unsigned flags) = nullptr;  // the stream does, not the host
  CuResult (*ask)(CuEvent event) = nullptr;  // 600: not yet
  CuResult (*error_text)(CuResult error, const char** text) = nullptr;

  // Finds the driver in a library, and whether it is one that can be used.
  static Problem Open(const char* path, Driver* driver) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::string("there is no CUDA driver (") + path + ")";
    const auto find = [&](const char* name, auto* to) {
      *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(dlsym(library, name));
      return *to != nullptr;
    };
    const bool is_whole = find("cuDriverGetVersion", &driver->version) &&
                          find("cuStreamGetCtx", &driver->stream_context) && find("cuCtxPushCurrent_v2", &driver->push) &&
                          find("cuCtxPopCurrent_v2", &driver->pop) && find("cuModuleLoadDataEx", &driver->load) &&
                          find("cuModuleGetFunction", &driver->function) && find("cuLaunchKernel", &driver->launch) &&
                          find("cuMemcpyDtoDAsync_v2", &driver->copy) && find("cuMemsetD8Async", &driver->fill) &&
                          find("cuMemcpyHtoDAsync_v2", &driver->copy_in) &&
                          find("cuMemcpyPeerAsync", &driver->copy_between) &&
                          find("cuMemcpy3DPeerAsync", &driver->copy_rows) &&
                          find("cuStreamWaitEvent", &driver->wait_on_gpu) &&
                          find("cuMemAllocHost_v2", &driver->host_memory) && find("cuEventQuery", &driver->ask) &&
                          find("cuEventCreate", &driver->make_event) && find("cuEventRecord", &driver->record) &&
                          find("cuEventSynchronize", &driver->wait) && find("cuGetErrorString", &driver->error_text);
    if (!is_whole) return std::string("the CUDA driver (") + path + ") lacks functions";
    int version = 0;
    if (const CuResult result = driver->version(&version)) return driver->Text("cuDriverGetVersion", result);
    if (version >= kLeastDriver) return "";
    return "the CUDA driver is of CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
           ", and one launch for all variables needs 12.1 (R530) or later";
  }

  Problem Text(const char* what, CuResult result) const {
    const char* text = nullptr;
    if (error_text(result, &text) != 0 || text == nullptr) text = "unknown error";
    return std::string(what) + " failed: " + text + " (CUDA error " + std::to_string(result) + ")" + Advice(result);
  }

 private:
  // What a user can do about an error.
  static const char* Advice(CuResult result) {
    switch (result) {
      case 2:  // CUDA_ERROR_OUT_OF_MEMORY
        return ". The GPU's memory is full: use a smaller batch or model, or end what else runs on that GPU";
      case 700: case 715: case 716: case 717: case 718: case 719: case 999:  // of a kernel that ran before, mostly
        return ". The GPU is lost to this process: restart it from its last checkpoint. A kernel that was launched before,"
               " of any library, may be the cause; CUDA_LAUNCH_BLOCKING=1 shows which one";
      default:
        return "";
    }
  }
};

// Makes the context of a stream the thread's, as long as it lives.
class Current {
 public:
  Current(const Driver& driver, CuStream stream) : driver_(driver) {
    CuResult result = driver.stream_context(stream, &context_);
    if (result == 0) result = driver.push(context_);
    if (result != 0) problem_ = driver.Text("making the GPU's context current", result);
  }
  ~Current() {
    CuContext last;
    if (problem_.empty()) driver_.pop(&last);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  const Problem& problem() const { return problem_; }
  CuContext context() const { return context_; }

 private:
  const Driver& driver_;
  CuContext context_ = nullptr;
  Problem problem_;
};

// A number that a kernel writes into memory of the host, for whoever asks for it later: by then it is there, mostly.
class Verdict {
 public:
  // Of the context that is current.
  static Problem Make(const Driver& driver, std::shared_ptr<Verdict>* made) {
    auto verdict = std::make_shared<Verdict>();
    void* memory = nullptr;
    if (const CuResult result = driver.host_memory(&memory, sizeof(double))) return driver.Text("asking for memory", result);
    if (const CuResult result = driver.make_event(&verdict->event_, kNoTiming)) return driver.Text("making an event", result);
    verdict->number_ = static_cast<double*>(memory);
    *made = std::move(verdict);
    return "";
  }

  double* number() const { return number_; }

  // After the launch that writes the number.
  Problem Record(const Driver& driver, CuStream stream) {
    stream_ = stream;
    is_waited_for_ = false;
    const CuResult result = driver.record(event_, stream);
    return result == 0 ? "" : driver.Text("recording an event", result);
  }

  // Whether the number is there already.
  Problem Ask(const Driver& driver, bool* is_there) {
    constexpr CuResult kNotReady = 600;
    *is_there = is_waited_for_;
    if (is_waited_for_) return "";
    const Current current(driver, stream_);
    if (!current.problem().empty()) return current.problem();
    const CuResult result = driver.ask(event_);
    if (result != 0 && result != kNotReady) return driver.Text("asking the GPU", result);
    *is_there = is_waited_for_ = result == 0;
    return "";
  }

  // Waits for all that was launched before, and for nothing after it.
  Problem Wait(const Driver& driver) {
    if (is_waited_for_) return "";
    const Current current(driver, stream_);
    if (!current.problem().empty()) return current.problem();
    if (const CuResult result = driver.wait(event_)) return driver.Text("waiting for the GPU", result);
    is_waited_for_ = true;
    return "";
  }

 private:
  double* number_ = nullptr;
  CuEvent event_ = nullptr;
  CuStream stream_ = nullptr;
  bool is_waited_for_ = true;
};

// Verdicts by context. They are used again, and never freed: a kernel may still write to them.
class Verdicts {
 public:
  // One that nobody else has, of the context that is current.
  Problem Take(const Driver& driver, CuContext context, std::shared_ptr<Verdict>* taken) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& all = all_[context];
    for (const auto& verdict : all) {
      if (verdict.use_count() > 1) continue;
      *taken = verdict;
      return verdict->Wait(driver);
    }
    const Problem problem = Verdict::Make(driver, taken);
    if (problem.empty()) all.push_back(*taken);
    return problem;
  }

 private:
  std::mutex mutex_;
  std::map<CuContext, std::vector<std::shared_ptr<Verdict>>> all_;
};

// Kernels that were loaded, by context and name. A module is loaded at the first use in a context, and stays.
class Kernels {
 public:
  // ptx: of the module that has the kernel.
  Problem Find(const Driver& driver, CuContext context, const std::string& name, const std::string& ptx,
               CuFunction* found) {
    std::lock_guard<std::mutex> lock(mutex_);
    CuFunction& function = functions_[{context, name}];
    if (function == nullptr) {
      CuModule& module = modules_[{context, &ptx}];
      if (module == nullptr) {
        if (const CuResult result = driver.load(&module, ptx.c_str(), 0, nullptr, nullptr)) {
          module = nullptr;
          return driver.Text("loading the kernel", result);
        }
      }
      if (const CuResult result = driver.function(&function, module, name.c_str())) {
        function = nullptr;
        return driver.Text("finding the kernel", result);
      }
    }
    *found = function;
    return "";
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<CuContext, const std::string*>, CuModule> modules_;
  std::map<std::pair<CuContext, std::string>, CuFunction> functions_;
};

}  // namespace dtopt

#endif  // DTOPT_DRIVER_H_
