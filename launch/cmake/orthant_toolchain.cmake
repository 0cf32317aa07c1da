# SPDX-License-Identifier: Apache-2.0
# How this project's own code is compiled: orthant_options is linked PRIVATE by every target made with orthant_library().
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(ORTHANT_CCACHE ccache)
if(ORTHANT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${ORTHANT_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ORTHANT_CCACHE})
endif()

add_library(orthant_options INTERFACE)
# Never -ffast-math, and no contraction to fused multiply-adds: an element's result must not depend on its offset nor on what the compiler
# inlined (law "Sums have an order"). The -Wno are false alarms of g++ 12 (std::string, AVX-512 intrinsics).
target_compile_options(orthant_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
    -Wno-maybe-uninitialized
    -fno-math-errno -ffp-contract=off>)
# Libraries and programs alike (CMake's own property says -fPIE for programs): they share precompiled headers.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
if(ORTHANT_NATIVE)
  target_compile_options(orthant_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(ORTHANT_SANITIZER)
  add_compile_options(-fsanitize=${ORTHANT_SANITIZER} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${ORTHANT_SANITIZER})
endif()
