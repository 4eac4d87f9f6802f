// What an evaluation would do: a walk over MLX's graph from arrays that are not evaluated yet.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include "mlx/c/array.h"
#include "mlx/c/private/mlx.h"
#include "mlx/primitives.h"

namespace {

namespace core = mlx::core;

extern "C" {

// Lengths of the axes of an array, and its number of type as mlx-c has it.
struct paceline_array_shape {
  const int* lengths;
  size_t axes;
  int dtype;
};

// A primitive: its name, what it computes, and what it reads. Good for the call only.
struct paceline_primitive {
  const char* name;
  const paceline_array_shape* outputs;
  size_t outputs_count;
  const paceline_array_shape* inputs;
  size_t inputs_count;
};

typedef void (*paceline_visit)(void* context, const paceline_primitive* primitive);

} // extern "C"

std::vector<paceline_array_shape> shapes_of(const std::vector<core::array>& arrays) {
  std::vector<paceline_array_shape> shapes;
  shapes.reserve(arrays.size());
  for (const core::array& array : arrays) {
    // The order of types is that of mlx-c.
    shapes.push_back({array.shape().data(), array.ndim(), static_cast<int>(array.dtype().val())});
  }
  return shapes;
}

// A primitive of a GPU that the CPU lacks. It is counted and cannot be evaluated.
class Fused : public core::Primitive {
 public:
  Fused(core::Stream stream, const char* name) : core::Primitive(stream), name_(name) {}

  void eval_cpu(const std::vector<core::array>&, std::vector<core::array>&) override {
    throw std::runtime_error("expected a graph that is counted and not evaluated, found an evaluation of " + name_);
  }

  void eval_gpu(const std::vector<core::array>& inputs, std::vector<core::array>& outputs) override {
    eval_cpu(inputs, outputs);
  }

  const char* name() const override {
    return name_.c_str();
  }

 private:
  std::string name_;
};

} // namespace

// Replaces an array by one of the same type and shape that one primitive of that name computes from the inputs. Inputs without
// an array are left out. 1: there is no memory.
extern "C" int paceline_fuse(mlx_array* array, const char* name, const mlx_array* inputs, size_t count) {
  try {
    const core::array& made = mlx_array_get_(*array);
    std::vector<core::array> from;
    for (size_t at = 0; at < count; ++at) {
      if (inputs[at].ctx != nullptr) {
        from.push_back(mlx_array_get_(inputs[at]));
      }
    }
    auto primitive = std::make_shared<Fused>(core::default_stream(core::default_device()), name);
    core::array fused(made.shape(), made.dtype(), std::move(primitive), std::move(from));
    mlx_array_set_(*array, std::move(fused));
    return 0;
  } catch (...) {
    return 1;
  }
}

// Calls `visit` once for each primitive that an evaluation of the arrays would run. A primitive with several outputs is one.
// 1: there is no memory.
extern "C" int paceline_graph(const mlx_array* roots, size_t count, void* context, paceline_visit visit) {
  try {
    std::vector<core::array> next;
    for (size_t at = 0; at < count; ++at) {
      next.push_back(mlx_array_get_(roots[at]));
    }
    std::unordered_set<std::uintptr_t> seen;
    while (!next.empty()) {
      core::array array = std::move(next.back());
      next.pop_back();
      if (array.status() != core::array::Status::unscheduled || !array.has_primitive() || !seen.insert(array.id()).second) {
        continue;
      }
      for (const core::array& sibling : array.siblings()) {
        seen.insert(sibling.id());
      }
      auto of = array.outputs();
      auto outputs = shapes_of(of);
      auto inputs = shapes_of(array.inputs());
      paceline_primitive primitive{array.primitive().name(), outputs.data(), outputs.size(), inputs.data(), inputs.size()};
      visit(context, &primitive);
      next.insert(next.end(), array.inputs().begin(), array.inputs().end());
    }
    return 0;
  } catch (...) {
    return 1;
  }
}

// 1: an evaluation of the array would run a primitive.
extern "C" int paceline_is_unscheduled(const mlx_array array) {
  return array.ctx != nullptr && mlx_array_get_(array).status() == core::array::Status::unscheduled;
}

// 1: an evaluation of the arrays would run a primitive.
extern "C" int paceline_any_unscheduled(const mlx_vector_array arrays) {
  if (arrays.ctx == nullptr) {
    return 0;
  }
  const auto& all = mlx_vector_array_get_(arrays);
  return std::any_of(all.begin(), all.end(), [](const core::array& array) {
    return array.status() == core::array::Status::unscheduled;
  });
}
