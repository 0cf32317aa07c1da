# SPDX-License-Identifier: Apache-2.0
# Every library that Orthant takes from elsewhere, as one imported target each. README.md says why each is there.
set(ORTHANT_VENV "$ENV{ORTHANT_VENV}" CACHE PATH "Virtual environment made by launch/bootstrap.sh")
if(NOT ORTHANT_VENV)
  set(ORTHANT_VENV ${PROJECT_SOURCE_DIR}/.venv CACHE PATH "" FORCE)
endif()
file(GLOB ORTHANT_SITE_PACKAGES ${ORTHANT_VENV}/lib/python3*/site-packages)
set(ORTHANT_TORCH_ROOT ${ORTHANT_SITE_PACKAGES}/torch)
if(NOT EXISTS ${ORTHANT_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch is not in ${ORTHANT_VENV}. Run: bash launch/bootstrap.sh")
endif()

# The CPU half of LibTorch only: a rank without a GPU then loads 120 MB instead of 485 MB. The CUDA module links the rest.
# (find_package(Torch) of the CUDA wheel would put the CUDA libraries on every target.)
# The wheel carries headers of another fmt than the system's library, so the system's come first.
find_path(ORTHANT_FMT_INCLUDE fmt/format.h REQUIRED NO_CMAKE_PATH)
set(ORTHANT_FMT_ROOT ${PROJECT_BINARY_DIR}/include_roots/_fmt)
file(MAKE_DIRECTORY ${ORTHANT_FMT_ROOT})
file(CREATE_LINK ${ORTHANT_FMT_INCLUDE}/fmt ${ORTHANT_FMT_ROOT}/fmt SYMBOLIC)
add_library(orthant_torch INTERFACE)
target_include_directories(orthant_torch SYSTEM INTERFACE ${ORTHANT_FMT_ROOT}
  ${ORTHANT_TORCH_ROOT}/include ${ORTHANT_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(orthant_torch INTERFACE AT_PER_OPERATOR_HEADERS)  # no header of LibTorch brings all operators
# at::parallel_for is a template in a header, so OpenMP is needed here; LibTorch's own runtime, so that there is one pool of threads.
target_compile_options(orthant_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_libraries(orthant_torch INTERFACE
  ${ORTHANT_TORCH_ROOT}/lib/libtorch_cpu.so ${ORTHANT_TORCH_ROOT}/lib/libc10.so ${ORTHANT_TORCH_ROOT}/lib/libgomp.so.1)
target_link_options(orthant_torch INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${ORTHANT_TORCH_ROOT}/lib)

find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)

# Debian ships these three without a CMake package.
find_path(ORTHANT_SENTENCEPIECE_INCLUDE sentencepiece_trainer.h REQUIRED)
find_library(ORTHANT_SENTENCEPIECE sentencepiece REQUIRED)
find_library(ORTHANT_SENTENCEPIECE_TRAIN sentencepiece_train REQUIRED)
add_library(orthant_sentencepiece INTERFACE)
target_include_directories(orthant_sentencepiece SYSTEM INTERFACE ${ORTHANT_SENTENCEPIECE_INCLUDE})
target_link_libraries(orthant_sentencepiece INTERFACE ${ORTHANT_SENTENCEPIECE_TRAIN} ${ORTHANT_SENTENCEPIECE})

find_path(ORTHANT_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(ORTHANT_XXHASH xxhash REQUIRED)
add_library(orthant_xxhash INTERFACE)
target_include_directories(orthant_xxhash SYSTEM INTERFACE ${ORTHANT_XXHASH_INCLUDE})
target_link_libraries(orthant_xxhash INTERFACE ${ORTHANT_XXHASH})

# NVTX is header-only and costs nothing while no profiler is attached; it ships with the CUDA toolkit and with the wheel.
find_path(ORTHANT_NVTX_INCLUDE nvtx3/nvToolsExt.h
  PATHS /usr/local/cuda/include ${ORTHANT_SITE_PACKAGES}/nvidia/cu13/include ${ORTHANT_SITE_PACKAGES}/nvidia/nvtx/include)
add_library(orthant_nvtx INTERFACE)
if(ORTHANT_NVTX_INCLUDE)
  target_include_directories(orthant_nvtx SYSTEM INTERFACE ${ORTHANT_NVTX_INCLUDE})
endif()
target_link_libraries(orthant_nvtx INTERFACE ${CMAKE_DL_LIBS})

if(ORTHANT_TESTS)
  find_package(GTest REQUIRED)
endif()
