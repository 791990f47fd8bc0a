// The cache on disk: code objects that were compiled at run time, for the next process.
//
// A file of the cache is text up to the first empty line, then the code object:
//   torch_reformer code object 1
//   kernel: depthwise forward_bf16_3_1_4_4      what it was made from: the key, some lines of "word: text"
//   ...
//   bytes: 12345                                of the code object
//   digest: 0123...                             of the code object, FNV-1a of 128 bits in hexadecimal
// The file's name is the key's digest. Whoever reads it compares the whole key, the length and the digest: a file that
// is damaged, or that belongs to another key, counts as none. Files are written under another name and renamed, so
// processes may race. FNV guards against accidents only; it never gives two texts the same digest that differ in one
// byte. Against others guards that the folder and its files belong to the user, and that nobody else may write to them:
// else they count as none, too, with a warning on stderr. Nor does anything that is no regular file count.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reformer::gpu {

std::string digest(std::string_view text);

// $TORCH_REFORMER_CACHE_DIR, or torch_reformer in $XDG_CACHE_HOME or ~/.cache; empty if there is no such folder.
std::string cache_folder();

std::optional<std::string> find_cached(const std::string& key);

// Removes what was used longest ago if all of it is now more than TORCH_REFORMER_CACHE_LIMIT bytes (256 MiB; 0: no
// cache). If the folder can't be written to, or by others too, says so on stderr, once in a process.
void store_cached(const std::string& key, const std::string& code);

}  // namespace reformer::gpu
