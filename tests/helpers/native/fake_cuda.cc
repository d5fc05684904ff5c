// A CUDA driver for tests: it records every call, checks what a real one would check, and runs kernels that g++ compiled
// with an emulated launch. A module's "PTX" is the path of their library.

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

struct Function {
  void (*run)(const void* argument, unsigned blocks);
  void* context;
};

// How far the work of each stream is known to be done.
using Clock = std::map<void*, int>;

struct Event {
  void* context;
  bool is_recorded;
  Clock clock;    // of its stream when it was recorded
  bool is_timed;
  double ended;  // when the work before it had ended, in milliseconds
};

struct State {
  int version = 12010, fails_at = -1, launches = 0, fails_with = 700, fails_to_wait = 0;
  int devices = 0, capability = 90, text_result = 0;  // GPUs that a process uses; what loading PTX returns
  int pushed = 0;            // contexts, by all threads, that are not popped yet
  double now = 0;            // milliseconds of work so far: 1 of each launch, 0.5 of each copy and each fill
  std::string calls, wrong;  // one name a line; the first check that failed
} state;

std::map<void*, Clock> clocks;                    // by stream
std::map<void*, int> launched;                    // by stream: the last work that changed its memory
std::map<void*, std::map<void*, int>> fetched;    // by stream: the last work of others that read its memory
std::mutex mutex;
thread_local std::vector<void*> contexts;  // the thread's stack

std::set<void*> modules;  // loaded ones stay so

// A stream's context is the number above it.
void* ContextOf(void* stream) { return static_cast<char*>(stream) + 1; }

void* StreamOf(void* context) { return static_cast<char*>(context) - 1; }

constexpr size_t kMemory = 1 << 20;  // of a GPU
const char kMachineCode[] = "machine code of ";  // before the path of a library

void Check(bool holds, const char* what) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!holds && state.wrong.empty()) state.wrong = what;
}

void Record(const char* call, int pushed = 0) {
  std::lock_guard<std::mutex> lock(mutex);
  state.calls += std::string(call) + "\n";
  state.pushed += pushed;
}

void Works(double milliseconds) {
  std::lock_guard<std::mutex> lock(mutex);
  state.now += milliseconds;
}

bool IsKnown(void* module) {
  std::lock_guard<std::mutex> lock(mutex);
  return modules.count(module) == 1;
}

// Work on a stream that changes its memory: what others read of it must have been read.
void Changes(void* stream) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [reader, work] : fetched[stream]) {
    if (clocks[stream][reader] < work && state.wrong.empty()) state.wrong = "memory is changed while another stream reads it";
  }
  launched[stream] = ++clocks[stream][stream];
}

// Work on a stream that reads memory of the other one: what was launched there must be done.
void Fetches(void* stream, void* from) {
  Record("fetch");
  Check(!contexts.empty() && contexts.back() == ContextOf(stream), "memory is fetched in another context");
  std::lock_guard<std::mutex> lock(mutex);
  const int work = ++clocks[stream][stream];
  if (from == stream) launched[stream] = work;  // a copy to memory of the same GPU
  if (from == stream) return;
  if (clocks[stream][from] < launched[from] && state.wrong.empty()) state.wrong = "memory is fetched before it is changed";
  fetched[from][stream] = work;
}

int NextLaunch() {
  std::lock_guard<std::mutex> lock(mutex);
  return state.launches++;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = state.version;
  return 0;
}

int cuStreamGetCtx(void* stream, void** context) {
  Record("context of a stream");
  *context = ContextOf(stream);
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  Record("push", 1);
  contexts.push_back(context);
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  Record("pop", -1);
  Check(!contexts.empty(), "a context is popped that was not pushed");
  if (contexts.empty()) return 201;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}

int cuInit(unsigned) { return 0; }

// One GPU more than the process uses, whose context must not be made.
int cuDeviceGetCount(int* count) {
  *count = state.devices + 1;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned*, int* is_active) {
  *is_active = device < state.devices;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  Check(device < state.devices, "a context is made on a GPU that the process does not use");
  Record("retain");
  *context = &state.devices;
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) {
  Record("release");
  return 0;
}

// Of an H100, but for the clock of its memory, which some drivers do not know.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = state.capability + 10 * device;  // all GPUs differ
  switch (attribute) {
    case 13: *value = 1980000; return 0;  // kHz
    case 37: *value = 5120; return 0;     // bits
    case 38: *value = 50 << 20; return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    default: return 1;  // CUDA_ERROR_INVALID_VALUE
  }
}

int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "NVIDIA H100 80GB HBM3", size);
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{80} << 30;
  return 0;
}

int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  Record("load");
  Check(!contexts.empty(), "a module is loaded without a context");
  const std::string path(static_cast<const char*>(image));
  const bool is_machine_code = path.rfind(kMachineCode, 0) == 0;
  if (!is_machine_code && state.text_result != 0) return state.text_result;
  *module = dlopen(is_machine_code ? path.c_str() + std::strlen(kMachineCode) : path.c_str(), RTLD_NOW);
  if (*module == nullptr) return 218;  // CUDA_ERROR_INVALID_PTX
  std::lock_guard<std::mutex> lock(mutex);
  modules.insert(*module);
  return 0;
}

int cuModuleUnload(void* module) {
  Record("unload");
  Check(IsKnown(module), "no module is unloaded");
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  Record("function");
  Check(IsKnown(module), "a function of no module");
  void* const found = dlsym(module, (std::string(name) + "_emulated").c_str());
  if (found == nullptr) return 500;  // CUDA_ERROR_NOT_FOUND
  *function = new Function{reinterpret_cast<void (*)(const void*, unsigned)>(found), contexts.back()};
  return 0;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void* stream, void** arguments, void** more) {
  Record("launch");
  const auto* of = static_cast<const Function*>(function);
  Check(!contexts.empty() && contexts.back() == of->context, "a function is launched in another context");
  Check(ContextOf(stream) == of->context, "a function is launched on a stream of another context");
  Check(x > 0 && y == 1 && z == 1 && threads_y == 1 && threads_z == 1, "the grid is not one of blocks in a row");
  Check(threads % 32 == 0 && threads <= 1024 && shared == 0 && more == nullptr, "blocks are not of whole warps");
  if (NextLaunch() == state.fails_at) return state.fails_with;
  Works(1);
  Changes(stream);
  of->run(arguments[0], x);
  return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
  Record("copy");
  Check(!contexts.empty(), "a copy without a context");
  Works(0.5);
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  Record("copy from the host");
  Check(!contexts.empty(), "a copy without a context");
  Works(0.5);
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}

int cuMemcpyPeerAsync(uint64_t to, void* of_to, uint64_t from, void* of_from, size_t bytes, void* stream) {
  Check(of_to == ContextOf(stream), "memory is fetched on a stream of another context");
  Fetches(stream, StreamOf(of_from));
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}

// CUDA_MEMCPY3D_PEER, of memory of GPUs.
struct Rows {
  size_t x, y, z, level;
  int memory;
  void* host;
  char* address;
  void* array;
  void* context;
  size_t pitch, height;
};
struct Copy {
  Rows from, to;
  size_t width, height, depth;
};

int cuMemcpy3DPeerAsync(const Copy* copy, void* stream) {
  for (const Rows* of : {&copy->from, &copy->to}) {
    const bool is_plain = of->x + of->y + of->z + of->level == 0 && of->memory == 2 && of->array == nullptr;
    Check(is_plain && of->pitch >= copy->width && of->height >= copy->height, "rows are copied that are none");
  }
  Check(copy->depth == 1 && copy->to.context == ContextOf(stream), "memory is fetched on a stream of another context");
  Fetches(stream, StreamOf(copy->from.context));
  for (size_t row = 0; row < copy->height; ++row) {
    std::memcpy(copy->to.address + row * copy->to.pitch, copy->from.address + row * copy->from.pitch, copy->width);
  }
  return 0;
}

int cuMemAllocHost_v2(void** memory, size_t bytes) {
  Record("host memory");
  Check(!contexts.empty(), "memory is asked for without a context");
  *memory = std::malloc(bytes);
  return 0;
}

int cuEventCreate(void** event, unsigned flags) {
  Record("event");
  Check(!contexts.empty() && (flags == 0 || flags == 2), "an event is made without a context, or with other flags");
  *event = new Event{contexts.empty() ? nullptr : contexts.back(), false, {}, flags == 0, 0};
  return 0;
}

int cuEventRecord(void* event, void* stream) {
  Record("record");
  auto* of = static_cast<Event*>(event);
  void* const current = contexts.empty() ? nullptr : contexts.back();  // whose default stream the null stream is
  Check((stream == nullptr ? current : ContextOf(stream)) == of->context,
        "an event is recorded on a stream of another context");
  of->is_recorded = true;
  std::lock_guard<std::mutex> lock(mutex);
  of->clock = clocks[stream];
  of->ended = state.now;
  return 0;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  Record("wait on the GPU");
  const auto* of = static_cast<const Event*>(event);
  Check(of->is_recorded && flags == 0, "a stream waits for an event that was not recorded");
  Check(!contexts.empty() && contexts.back() == ContextOf(stream), "a stream waits in another context");
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [other, work] : of->clock) clocks[stream][other] = std::max(clocks[stream][other], work);
  return 0;
}

int cuEventQuery(void* event) {
  Record("ask");
  Check(static_cast<Event*>(event)->is_recorded, "an event is asked that was not recorded");
  return 0;
}

int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void*) {
  Record("fill");
  Check(!contexts.empty(), "memory is filled without a context");
  Works(0.5);
  std::memset(reinterpret_cast<void*>(to), byte, bytes);
  return 0;
}

int cuEventSynchronize(void* event) {
  Record("wait");
  Check(static_cast<Event*>(event)->is_recorded, "an event is waited for that was not recorded");
  return state.fails_to_wait;
}

int cuEventElapsedTime(float* milliseconds, void* first, void* last) {
  const auto *from = static_cast<const Event*>(first), *to = static_cast<const Event*>(last);
  Check(from->is_recorded && to->is_recorded && from->is_timed && to->is_timed, "time is asked of events without it");
  *milliseconds = static_cast<float>(to->ended - from->ended);
  return 0;
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  Check(!contexts.empty(), "memory without a context");
  if (bytes > kMemory) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  *address = reinterpret_cast<uint64_t>(std::calloc(bytes, 1));
  return 0;
}

int cuCtxSynchronize() {
  Record("synchronise");
  Check(!contexts.empty(), "a wait without a context");
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 700 ? "an illegal memory access was encountered" : "another error";
  return 0;
}

// What tests ask and set.

void fake_reset(int version, int fails_at) {
  state = State();
  clocks.clear();
  launched.clear();
  fetched.clear();
  state.version = version;
  state.fails_at = fails_at;
}

void fake_gpus(int devices, int capability, int text_result) {
  state.devices = devices;
  state.capability = capability;
  state.text_result = text_result;
}

// The error of the launch that fails, CUDA_ERROR_ILLEGAL_ADDRESS if none is set, and that of waiting.
void fake_errors(int fails_with, int fails_to_wait) {
  state.fails_with = fails_with;
  state.fails_to_wait = fails_to_wait;
}

const char* fake_calls() { return state.calls.c_str(); }

const char* fake_wrong() {
  Check(state.pushed == 0, "a context is left on a thread's stack");
  return state.wrong.c_str();
}

}  // extern "C"
