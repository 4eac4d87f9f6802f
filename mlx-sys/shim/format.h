// Included before each file of mlx-c. GCC 12's library has no <format>; mlx-c uses `std::format` with plain `{}` only,
// in the messages of a few errors.
#pragma once

#if __has_include(<format>)
#include <format>
#endif

#ifndef __cpp_lib_format
#include <sstream>
#include <string>
#include <string_view>

namespace std {
template <class... Args>
string format(string_view text, const Args&... args) {
  ostringstream out;
  auto put = [&](const auto& arg) {
    auto at = text.find("{}");
    out << text.substr(0, at);
    if (at == string_view::npos) {
      text = {};
      return;
    }
    out << arg;
    text.remove_prefix(at + 2);
  };
  (put(args), ...);
  out << text;
  return out.str();
}
} // namespace std
#endif
