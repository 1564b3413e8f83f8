// Our own versions of what this compiler's headers and libraries take from a newer glibc than 2.28 or a newer libstdc++
// than GCC 8's (manylinux_2_28), so that wheels built on a newer system run there. Each does what the function of its
// name does; none is visible outside the library that it is linked into. CMakeLists.txt: NPU_KERNELS_OLD_GLIBC.
#include <ios>
#include <new>
#include <sstream>

#define NPU_LOCAL __attribute__((visibility("hidden")))

// 0: libstdc++ counts references by atomic operations always.
extern "C" NPU_LOCAL char __libc_single_threaded;
char __libc_single_threaded = 0;

// pow's newer version differs from the older one only in errno, which nothing here reads.
extern "C" double npu_old_pow(double base, double exponent);
#if defined(__x86_64__)
__asm__(".symver npu_old_pow, pow@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver npu_old_pow, pow@GLIBC_2.17");
#endif
extern "C" NPU_LOCAL double __wrap_pow(double base, double exponent);
double __wrap_pow(double base, double exponent) { return npu_old_pow(base, exponent); }

// These two have a new version since they moved from libpthread to libc (glibc 2.34).
extern "C" int npu_old_key_create(unsigned* key, void (*destroy)(void*));
extern "C" int npu_old_setspecific(unsigned key, const void* value);
#if defined(__x86_64__)
__asm__(".symver npu_old_key_create, pthread_key_create@GLIBC_2.2.5");
__asm__(".symver npu_old_setspecific, pthread_setspecific@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver npu_old_key_create, pthread_key_create@GLIBC_2.17");
__asm__(".symver npu_old_setspecific, pthread_setspecific@GLIBC_2.17");
#endif
extern "C" NPU_LOCAL int __wrap_pthread_key_create(unsigned* key, void (*destroy)(void*));
int __wrap_pthread_key_create(unsigned* key, void (*destroy)(void*)) { return npu_old_key_create(key, destroy); }
extern "C" NPU_LOCAL int __wrap_pthread_setspecific(unsigned key, const void* value);
int __wrap_pthread_setspecific(unsigned key, const void* value) { return npu_old_setspecific(key, value); }

extern "C" [[noreturn]] NPU_LOCAL void npu_throw_bad_array_new_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void npu_throw_bad_array_new_length() { throw std::bad_array_new_length(); }

// The counts of references to an exception, by the functions that copy and destroy an exception_ptr: these are older.
// Each names its version, so that it is never the inline one of this compiler's headers, which would call us again.
extern "C" void npu_old_copy(void* pointer, const void* from);
__asm__(".symver npu_old_copy, _ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
extern "C" void npu_old_destroy(void* pointer);
__asm__(".symver npu_old_destroy, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");
extern "C" NPU_LOCAL void npu_addref(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void npu_addref(void* pointer) {
  void* copy;  // never destroyed: its reference is the one that is added
  npu_old_copy(&copy, pointer);
}
extern "C" NPU_LOCAL void npu_release(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void npu_release(void* pointer) { npu_old_destroy(pointer); }

// The string streams' constructors without arguments, by those with the default mode, which are older.
extern "C" NPU_LOCAL void npu_ostringstream(std::ostringstream* stream) __asm__(
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void npu_ostringstream(std::ostringstream* stream) { new (stream) std::ostringstream(std::ios_base::out); }
extern "C" NPU_LOCAL void npu_stringstream(std::stringstream* stream) __asm__(
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void npu_stringstream(std::stringstream* stream) {
  new (stream) std::stringstream(std::ios_base::in | std::ios_base::out);
}
