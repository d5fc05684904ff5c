// Work in blocks on the threads of TensorFlow's pool.

#ifndef DTOPT_THREADS_H_
#define DTOPT_THREADS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace dtopt {

constexpr int64_t kBlock = 32 * 1024;               // elements: the least that a thread takes at a time
constexpr auto kSpin = std::chrono::microseconds(50);  // that the caller waits awake

struct Job {
  std::function<void(int64_t)> run;
  int64_t blocks = 0, threads = 1;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable finished;

  // Blocks that follow each other: as many of those left as there would be for each thread, at first long runs, in which
  // a processor foresees what comes, at last single ones, so that all end together.
  bool Take(int64_t* begin, int64_t* end) {
    *begin = next.load();
    do {
      if (*begin >= blocks) return false;
      *end = *begin + (blocks - *begin + threads - 1) / threads;
    } while (!next.compare_exchange_weak(*begin, *end));
    return true;
  }

  void TakeBlocks() {
    for (int64_t begin, end; Take(&begin, &end);) {
      for (int64_t block = begin; block < end; ++block) run(block);
      if (done.fetch_add(end - begin) + end - begin < blocks) continue;
      std::lock_guard<std::mutex> lock(mutex);
      finished.notify_all();
    }
  }

  // What others still work on is done in less time than it takes to fall asleep and be woken, usually.
  void Wait() {
    const auto soon = std::chrono::steady_clock::now() + kSpin;
    while (done.load() < blocks && std::chrono::steady_clock::now() < soon) std::this_thread::yield();
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [&] { return done.load() == blocks; });
  }
};

using Workers = tensorflow::DeviceBase::CpuWorkerThreads;  // of a device, which outlives what is on it
inline const Workers& WorkersOf(tensorflow::OpKernelContext* context) {
  return *context->device()->tensorflow_cpu_worker_threads();
}

// run(0), ..., run(blocks - 1), in any order, on this thread and on those of the pool.
inline void ForEachBlock(const Workers& workers, int64_t blocks, std::function<void(int64_t)> run) {
  auto job = std::make_shared<Job>();  // a helper that starts too late still finds it, and nothing left in it
  job->run = std::move(run);
  job->blocks = blocks;
  job->threads = std::max<int64_t>(std::min<int64_t>(workers.num_threads, blocks), 1);
  for (int64_t i = 1; i < job->threads; ++i) {
    workers.workers->Schedule([job] { job->TakeBlocks(); });
  }
  job->TakeBlocks();
  job->Wait();
}

// Tensors laid end to end and cut into blocks, so that a block is a part of a large tensor or many small ones. Each is
// cut at multiples of `align` of its elements, which divides kBlock.
class Line {
 public:
  Line(std::vector<int64_t> sizes, int64_t align) : sizes_(std::move(sizes)), ends_(sizes_.size()) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      length_ += (sizes_[i] + align - 1) / align * align;
      ends_[i] = length_;
    }
  }

  int64_t length() const { return length_; }
  int64_t start(size_t i) const { return i == 0 ? 0 : ends_[i - 1]; }
  int64_t blocks() const { return (length_ + kBlock - 1) / kBlock; }

  // visit(index of a tensor, begin, end) for all that is in a block.
  template <typename Visit>
  void Block(int64_t block, const Visit& visit) const {
    const int64_t begin = block * kBlock, end = std::min(begin + kBlock, length_);
    size_t i = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (; i < ends_.size() && start(i) < end; ++i) {
      const int64_t from = std::max<int64_t>(begin - start(i), 0), to = std::min(end - start(i), sizes_[i]);
      if (from < to) visit(i, from, to);
    }
  }

 private:
  std::vector<int64_t> sizes_, ends_;
  int64_t length_ = 0;
};

}  // namespace dtopt

#endif  // DTOPT_THREADS_H_
