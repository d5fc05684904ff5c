// Work in blocks on the threads of TensorFlow's pool.

#ifndef DTOPT_THREADS_H_
#define DTOPT_THREADS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace dtopt {

constexpr int64_t kBlock = 32 * 1024;  // elements that a thread takes at a time

// The caller works itself, and so do threads of the device's pool while fewer are busy than the pool has. Logical devices
// of one process share the pool, and each has a caller: helpers give way to callers, and a caller whose own work is
// done takes part in that of the others.

struct Job {
  std::function<void(int64_t)> run;
  int64_t blocks = 0;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable finished;
};

inline std::atomic<int> busy{0};
inline std::mutex jobs_mutex;
inline std::vector<std::shared_ptr<Job>> jobs;  // those in hand

inline void TakeBlocks(Job& job, int most_busy) {
  while (busy.load() <= most_busy) {
    const int64_t block = job.next.fetch_add(1);
    if (block >= job.blocks) return;
    job.run(block);
    if (job.done.fetch_add(1) + 1 == job.blocks) {
      std::lock_guard<std::mutex> lock(job.mutex);
      job.finished.notify_all();
    }
  }
}

inline void HelpOthers() {
  std::vector<std::shared_ptr<Job>> others;
  {
    std::lock_guard<std::mutex> lock(jobs_mutex);
    others = jobs;
  }
  for (const auto& job : others) TakeBlocks(*job, INT32_MAX);
}

// run(0), ..., run(blocks - 1), in any order and on any thread.
inline void ForEachBlock(tensorflow::OpKernelContext* context, int64_t blocks, std::function<void(int64_t)> run) {
  auto job = std::make_shared<Job>();  // a helper that starts too late still finds it, and nothing left in it
  job->run = std::move(run);
  job->blocks = blocks;
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  const int threads = workers->num_threads;
  busy.fetch_add(1);
  if (blocks > 1) {
    std::lock_guard<std::mutex> lock(jobs_mutex);
    jobs.push_back(job);
  }
  for (int64_t i = 1; i < std::min<int64_t>(threads, blocks); ++i) {
    workers->workers->Schedule([job, threads] {
      if (busy.fetch_add(1) < threads) TakeBlocks(*job, threads);
      busy.fetch_sub(1);
    });
  }
  TakeBlocks(*job, INT32_MAX);
  if (blocks > 1) {
    std::lock_guard<std::mutex> lock(jobs_mutex);
    jobs.erase(std::find(jobs.begin(), jobs.end(), job));
  }
  HelpOthers();
  {
    std::unique_lock<std::mutex> lock(job->mutex);
    job->finished.wait(lock, [&] { return job->done.load() == job->blocks; });
  }
  busy.fetch_sub(1);
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
