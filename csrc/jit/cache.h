// The cache on disk of code objects compiled at run time, shared with later processes.
//
// A file of the cache is text up to the first empty line, followed by the code object:
//   torch_reformer code object 1
//   kernel: depthwise forward_bf16_3_1_4_4      the key: some lines of "word: text"
//   ...
//   bytes: 12345                                size of the code object
//   digest: 0123...                             FNV-1a of 128 bits of the code object, hexadecimal
// The file's name is the digest of the key. Readers compare the whole key, the length and the digest; a file that is
// damaged or belongs to another key counts as missing. Files are written under another name and then renamed, so
// processes may race. FNV protects only against accidents, and two texts that differ in one byte never have equal
// digests. Against other users, the folder and its files must belong to the user and be writable by nobody else; if
// not, they count as missing, with a warning on stderr. Files that are not regular count as missing, too.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reformer::gpu {

std::string digest(std::string_view text);

// $TORCH_REFORMER_CACHE_DIR, or torch_reformer in $XDG_CACHE_HOME or ~/.cache; empty if there is no such folder.
std::string cache_folder();

std::optional<std::string> find_cached(const std::string& key);

// Also removes the least recently used files if the cache is now larger than TORCH_REFORMER_CACHE_LIMIT bytes (256 MiB
// by default; 0 disables the cache). If the folder can't be written to, or others may write to it, warns on stderr once
// per process.
void store_cached(const std::string& key, const std::string& code);

}  // namespace reformer::gpu
