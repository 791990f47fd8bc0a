// How the library's functions are declared: they alone are visible.
#pragma once

#define STUB_API extern "C" __attribute__((visibility("default")))
