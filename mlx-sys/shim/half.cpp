// The half-precision accessors that mlx-c leaves out where the C compiler has no half-precision types (array.cpp,
// HAS_FLOAT16 and HAS_BFLOAT16). A value crosses as its 16 bits.
#include <bit>
#include <cstdint>

#include "mlx/c/array.h"
#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"

namespace {

template <class T>
int item(uint16_t* res, const mlx_array arr) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  try {
    *res = std::bit_cast<uint16_t>(mlx_array_get_(arr).item<T>());
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

template <class T>
const uint16_t* data(const mlx_array arr) {
  try {
    return reinterpret_cast<const uint16_t*>(mlx_array_get_(arr).data<T>());
  } catch (std::exception& e) {
    mlx_error(e.what());
    return nullptr;
  }
}

} // namespace

extern "C" int mlx_array_item_float16(uint16_t* res, const mlx_array arr) {
  return item<mlx::core::float16_t>(res, arr);
}

extern "C" int mlx_array_item_bfloat16(uint16_t* res, const mlx_array arr) {
  return item<mlx::core::bfloat16_t>(res, arr);
}

extern "C" const uint16_t* mlx_array_data_float16(const mlx_array arr) {
  return data<mlx::core::float16_t>(arr);
}

extern "C" const uint16_t* mlx_array_data_bfloat16(const mlx_array arr) {
  return data<mlx::core::bfloat16_t>(arr);
}
