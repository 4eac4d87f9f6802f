// A node of MLX's graph whose values a function of the caller's computes, on the CPU, in float32: one array or several. Beside
// rows of float32 it may have inputs of other types, which the function gets as they are stored. It runs where MLX runs its own CPU operations: on the stream's thread, in the graph's order, into memory of MLX's allocator.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/array.h"
#include "mlx/c/private/mlx.h"
#include "mlx/primitives.h"

namespace {

namespace core = mlx::core;

extern "C" {

// Rows of an input: `rows` times `length` numbers, each row in one piece, `stride` numbers from one to the next.
struct paceline_rows {
  const float* data;
  size_t rows;
  size_t stride;
  size_t length;
};

enum paceline_kind : int { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, UINT32 = 3 };

// All numbers of an input in the order of their indices, one after another, aligned.
struct paceline_numbers {
  const void* data;
  size_t count;
  paceline_kind kind;
};

struct paceline_inputs {
  const paceline_rows* rows;
  size_t rows_count;
  const paceline_numbers* numbers;
  size_t numbers_count;
};

// Numbers that the function writes.
struct paceline_output {
  float* data;
  size_t size;
};

typedef void (*paceline_compute)(const void* context, const paceline_inputs* inputs, const paceline_output* outputs, size_t count);
typedef void (*paceline_drop)(void* context);

} // extern "C"

// The caller's function with what it closes over; used by one task at a time, given back when nobody needs it.
struct Work {
  void* context;
  paceline_compute compute;
  paceline_drop drop;

  Work(void* context, paceline_compute compute, paceline_drop drop) : context(context), compute(compute), drop(drop) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    drop(context);
  }
};

// A vector is one row; else the first axis counts rows.
size_t rows_of(const core::array& in) {
  return in.ndim() < 2 ? 1 : in.shape(0);
}

// All axes within a row lie as if the row were an array of its own.
bool rows_in_one_piece(const core::array& in) {
  int64_t next = 1;
  int outer = in.ndim() < 2 ? 0 : 1;
  for (int axis = static_cast<int>(in.ndim()) - 1; axis >= outer; --axis) {
    if (in.shape(axis) != 1 && in.strides(axis) != next) {
      return false;
    }
    next *= in.shape(axis);
  }
  return outer == 0 || in.shape(0) <= 1 || in.strides(0) >= 0;
}

std::optional<paceline_kind> kind_of(const core::array& in) {
  if (in.dtype() == core::float32) {
    return FLOAT32;
  } else if (in.dtype() == core::float16) {
    return FLOAT16;
  } else if (in.dtype() == core::bfloat16) {
    return BFLOAT16;
  } else if (in.dtype() == core::uint32) {
    return UINT32;
  }
  return std::nullopt;
}

// All numbers lie as the function reads them. A mapped file may have put them at any address.
bool in_one_piece(const core::array& in) {
  return in.flags().row_contiguous && reinterpret_cast<uintptr_t>(in.data<char>()) % in.itemsize() == 0;
}

// The same numbers in the order of their indices. `at`: room for an index of every axis.
void gather(const core::array& in, std::vector<int>& at, void* to) {
  size_t axes = in.ndim();
  size_t item = in.itemsize();
  std::fill_n(at.begin(), axes, 0);
  const char* data = in.data<char>();
  char* place = static_cast<char*>(to);
  for (char* end = place + in.nbytes(); place != end; place += item) {
    int64_t offset = 0;
    for (size_t axis = 0; axis < axes; ++axis) {
      offset += at[axis] * in.strides(axis);
    }
    std::memcpy(place, data + offset * static_cast<int64_t>(item), item);
    for (size_t axis = axes; axis-- > 0;) {
      if (++at[axis] < in.shape(axis)) {
        break;
      }
      at[axis] = 0;
    }
  }
}

// Memory of MLX's allocator. MLX's CPU allocator gives no memory where there is none, and no error.
core::allocator::Buffer allocated(size_t bytes) {
  auto buffer = core::allocator::malloc(bytes);
  if (bytes > 0 && buffer.ptr() == nullptr) {
    throw std::runtime_error("expected memory for " + std::to_string(bytes) + " bytes of a node's output, found none");
  }
  return buffer;
}

// All memory that a task needs beside the arrays. It is allocated when the node is scheduled: an exception there ends the
// evaluation with an error before the task exists, so that no later task computes with numbers that were never written.
struct Scratch {
  std::vector<core::array> held;
  // For each input that lies in pieces: its numbers in one piece.
  std::vector<std::unique_ptr<float[]>> gathered;
  std::vector<paceline_rows> rows;
  std::vector<paceline_numbers> numbers;
  std::vector<int> at;

  // `in_place`: as many first inputs go to outputs and need no room here. Inputs from `rows_count` on are numbers.
  Scratch(const std::vector<core::array>& inputs, size_t in_place, size_t rows_count) : gathered(inputs.size()) {
    held.reserve(inputs.size());
    rows.reserve(rows_count);
    numbers.reserve(inputs.size() - rows_count);
    size_t axes = 0;
    for (size_t input = 0; input < inputs.size(); ++input) {
      const core::array& in = inputs[input];
      held.push_back(core::array::unsafe_weak_copy(in));
      axes = std::max(axes, in.ndim());
      bool fits = input < rows_count ? rows_in_one_piece(in) : in_one_piece(in);
      if (input >= in_place && !fits) {
        gathered[input].reset(new float[(in.nbytes() + sizeof(float) - 1) / sizeof(float)]);
      }
    }
    at.resize(axes);
  }

  // What the function gets. Every vector has its room already.
  paceline_inputs inputs(size_t in_place, size_t rows_count) {
    for (size_t input = in_place; input < held.size(); ++input) {
      const core::array& in = held[input];
      float* copy = gathered[input].get();
      if (copy != nullptr) {
        gather(in, at, copy);
      }
      if (input >= rows_count) {
        const void* data = copy != nullptr ? copy : static_cast<const void*>(in.data<char>());
        numbers.push_back({data, in.size(), *kind_of(in)});
        continue;
      }
      size_t count = rows_of(in);
      size_t length = count == 0 ? 0 : in.size() / count;
      size_t stride = copy == nullptr && count > 1 ? in.strides(0) : length;
      rows.push_back({copy != nullptr ? copy : in.data<float>(), count, stride, length});
    }
    return {rows.data(), rows.size(), numbers.data(), numbers.size()};
  }
};

class Host : public core::Primitive {
 public:
  Host(core::Stream stream, std::shared_ptr<Work> work, size_t in_place, size_t rows_count)
      : core::Primitive(stream), work_(std::move(work)), in_place_(in_place), rows_count_(rows_count) {}

  void eval_cpu(const std::vector<core::array>& inputs, std::vector<core::array>& outputs) override {
    // Every output refers to the inputs. All but the one that is evaluated forget them now, as MLX makes them do afterwards:
    // else none of the inputs could be written in place.
    auto is_evaluated = [&inputs](const core::array& out) { return &out.inputs() == &inputs; };
    if (std::any_of(outputs.begin(), outputs.end(), is_evaluated)) {
      for (core::array& out : outputs) {
        if (!is_evaluated(out)) {
          out.inputs().clear();
        }
      }
    }
    // In place: an input's memory where nobody else needs it, else a copy.
    std::vector<bool> shared(in_place_);
    for (size_t at = 0; at < in_place_; ++at) {
      const core::array& in = inputs[at];
      shared[at] = in.is_donatable() && in.flags().row_contiguous && in.size() == outputs[at].size();
    }
    auto scratch = std::make_shared<Scratch>(inputs, in_place_, rows_count_);
    std::vector<core::array> written;
    for (size_t at = 0; at < outputs.size(); ++at) {
      core::array& out = outputs[at];
      if (at < in_place_ && shared[at]) {
        out.copy_shared_buffer(inputs[at]);
      } else {
        out.set_data(allocated(out.nbytes()));
      }
      written.push_back(core::array::unsafe_weak_copy(out));
    }
    auto& encoder = core::cpu::get_command_encoder(stream());
    encoder.dispatch([work = work_,
                      scratch = std::move(scratch),
                      written = std::move(written),
                      places = std::vector<paceline_output>(outputs.size()),
                      in_place = in_place_,
                      rows_count = rows_count_,
                      shared = std::move(shared)]() mutable {
      for (size_t at = 0; at < written.size(); ++at) {
        places[at] = {written[at].data<float>(), written[at].size()};
      }
      for (size_t at = 0; at < in_place; ++at) {
        const core::array& in = scratch->held[at];
        if (shared[at]) {
          continue;
        } else if (in.flags().row_contiguous) {
          std::copy_n(in.data<float>(), places[at].size, places[at].data);
        } else {
          gather(in, scratch->at, places[at].data);
        }
      }
      paceline_inputs inputs = scratch->inputs(in_place, rows_count);
      work->compute(work->context, &inputs, places.data(), places.size());
    });
  }

  void eval_gpu(const std::vector<core::array>&, std::vector<core::array>&) override {
    throw std::runtime_error("expected the CPU, found a GPU's stream");
  }

  const char* name() const override {
    return "Host";
  }

 private:
  std::shared_ptr<Work> work_;
  // Inputs whose values the first outputs begin as.
  size_t in_place_;
  // Inputs that are rows. The others are numbers.
  size_t rows_count_;
};

} // namespace

// Arrays of some shapes, float32, that `compute` fills when one of them is evaluated: `outputs` of them. `axes` has the number of
// axes of each, `shapes` their lengths one after another. Takes `context` over in any case. The first
// `rows_count` of `count` inputs are rows, the others numbers. The first `in_place` outputs begin as the values of as many first
// inputs, which have as many numbers each, and `compute` gets the other inputs only. 1: rows are not float32, numbers are of no known kind, the default
// device is no CPU, or there is no memory.
extern "C" int paceline_host(
    mlx_array* results,
    size_t outputs,
    const size_t* axes,
    const int* shapes,
    const mlx_array* inputs,
    size_t count,
    size_t rows_count,
    size_t in_place,
    void* context,
    paceline_compute compute,
    paceline_drop drop) {
  try {
    auto work = std::make_shared<Work>(context, compute, drop);
    context = nullptr;
    if (core::default_device() != core::Device::cpu) {
      return 1;
    }
    std::vector<core::Shape> of;
    for (size_t at = 0; at < outputs; shapes += axes[at++]) {
      of.emplace_back(shapes, shapes + axes[at]);
    }
    std::vector<core::array> from;
    from.reserve(count);
    for (size_t at = 0; at < count; ++at) {
      from.push_back(mlx_array_get_(inputs[at]));
      auto kind = kind_of(from.back());
      if (!kind || (at < rows_count && *kind != FLOAT32)) {
        return 1;
      }
    }
    if (rows_count > count || in_place > rows_count || in_place > outputs) {
      return 1;
    }
    for (size_t at = 0; at < in_place; ++at) {
      size_t size = 1;
      for (int length : of[at]) {
        size *= length;
      }
      if (from[at].size() != size) {
        return 1;
      }
    }
    auto primitive = std::make_shared<Host>(core::default_stream(core::Device::cpu), std::move(work), in_place, rows_count);
    auto made = core::array::make_arrays(std::move(of), std::vector<core::Dtype>(outputs, core::float32), primitive, from);
    for (size_t at = 0; at < outputs; ++at) {
      mlx_array_set_(results[at], made[at]);
    }
    return 0;
  } catch (...) {
    if (context != nullptr) {
      drop(context);
    }
    return 1;
  }
}
