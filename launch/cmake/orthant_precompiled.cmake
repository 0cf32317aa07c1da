# SPDX-License-Identifier: Apache-2.0
# Headers of others that most files include, compiled once: parsing them is most of the time that a file takes. Only speed depends on it: each file
# still includes what it uses (ORTHANT_PRECOMPILED=OFF builds without), and no header of this project is in them.
#   orthant_precompiled(NAME HEADERS … LIBS …)   makes a set
#   orthant_use_precompiled(TARGET)              takes ${ORTHANT_PRECOMPILED_FOR}_tensors where the target links LibTorch, else …_plain
option(ORTHANT_PRECOMPILED "Precompile the headers of LibTorch, GoogleTest, fmt and the standard library" ON)

function(orthant_precompiled name)
  if(NOT ORTHANT_PRECOMPILED)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBS")
  set(empty ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${empty} CONTENT "// the object file that the precompiled headers of ${name} hang on\n")
  add_library(orthant_precompiled_${name} OBJECT ${empty})
  target_link_libraries(orthant_precompiled_${name} PRIVATE orthant_options ${arg_LIBS})
  target_precompile_headers(orthant_precompiled_${name} PRIVATE ${arg_HEADERS})
  set_target_properties(orthant_precompiled_${name} PROPERTIES ORTHANT_LIBS "${arg_LIBS}")
endfunction()

function(orthant_use_precompiled target)
  if(NOT ORTHANT_PRECOMPILED)
    return()
  endif()
  get_target_property(tensors ${target} ORTHANT_TENSORS)
  if(tensors)
    set(name ${ORTHANT_PRECOMPILED_FOR}_tensors)
  else()
    set(name ${ORTHANT_PRECOMPILED_FOR}_plain)
  endif()
  # A set is taken only where the same macros are defined, so its libraries come with it.
  get_target_property(libs orthant_precompiled_${name} ORTHANT_LIBS)
  target_link_libraries(${target} PRIVATE ${libs})
  target_precompile_headers(${target} REUSE_FROM orthant_precompiled_${name})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Winvalid-pch>)
endfunction()

set(ORTHANT_PLAIN_HEADERS <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem> <functional> <limits> <map> <memory>
  <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread> <tuple> <utility> <variant> <vector>
  <fmt/format.h> <fmt/ranges.h>)
set(ORTHANT_TENSOR_HEADERS ${ORTHANT_PLAIN_HEADERS} <ATen/core/Tensor.h> <ATen/core/grad_mode.h> <ATen/Dispatch.h> <ATen/Parallel.h>
  <ATen/TensorOperators.h> <ATen/ops/empty.h> <ATen/ops/empty_like.h> <ATen/ops/full.h> <ATen/ops/mm.h> <ATen/ops/zeros.h>)
set(ORTHANT_TEST_HEADERS <gtest/gtest.h> <random>)
