// Tensors that are read through maps of their axes (program/axis_maps.h). For an ISA body, after operations.h; no
// include guard.

namespace reformer::REFORMER_ISA {

// Calls visit() with the tensor's elements, as a pointer to their type, and a function that widens one.
template <class S, class Visit>
void visit_elements(const ProgramOperand& from, Visit visit) {
  const auto widened = [](auto element) { return S(Element<decltype(element)>::load(element)); };
  switch (from.type) {
    case Stored::fp32: return visit(static_cast<const float*>(from.data), widened);
    case Stored::fp64: return visit(static_cast<const double*>(from.data), widened);
    case Stored::fp16: return visit(static_cast<const Half*>(from.data), widened);
    case Stored::bf16: return visit(static_cast<const BFloat16*>(from.data), widened);
    case Stored::int64:
      return visit(static_cast<const int64_t*>(from.data), [](int64_t element) { return S(element); });
    case Stored::int32:
      return visit(static_cast<const int32_t*>(from.data), [](int32_t element) { return S(element); });
    case Stored::mask:
    case Stored::result:
      return visit(static_cast<const uint8_t*>(from.data), [](uint8_t element) { return S(element != 0); });
  }
}

template <class S>
class Mapped {
 public:
  Mapped(const ProgramCall& call, const ProgramNode& node)
      : call_(call),
        from_(call.inputs[size_t(node.input)]),
        placement_(call.placements[size_t(from_.place)]),
        nowhere_(S(node.value)),
        maps_(call, size_t(node.input)) {}

  // Reads elements of these lines from this column on.
  const S* read(int64_t line, int64_t lines, int64_t column, int64_t width, S* to) const {
    for (int64_t i = 0; i < lines; ++i) read_line(line + i, column, width, to + i * width);
    return to;
  }

 private:
  // A sum of places, and a product of weights.
  struct Tap {
    int64_t place;
    S weight;
  };

  void read_line(int64_t line, int64_t column, int64_t width, S* to) const {
    Tap taps[kMostTaps];
    const int count = taps_of(line, taps);
    const bool chooses = maps_.only_choose();
    if (!count) return std::fill(to, to + width, nowhere_);
    if (const AxisMap* const columns = maps_.of_columns()) {
      if (chooses) return choose_columns(numbers(*columns, column), taps[0].place, width, to);
      return add_columns(*columns, taps, count, column, width, to);
    }
    const int64_t adjacent = placement_.adjacent_columns(), end = column + width;
    for (int64_t next; column < end; to += next - column, column = next) {
      next = std::min(std::min(end, column - column % adjacent + adjacent), column + programs::kBlock);
      const int64_t place = placement_.column(column);
      if (chooses)
        reformer::REFORMER_ISA::read(to, from_, taps[0].place + place, next - column);
      else
        add_lines(taps, count, place, next - column, to);
    }
  }

  const int32_t* numbers(const AxisMap& map, int64_t position) const {
    const ProgramOperand& of = call_.inputs[map.input];
    const int64_t at = map.by_column ? position * of.width : call_.placements[size_t(of.place)].line(position);
    return static_cast<const int32_t*>(of.data) + at;
  }

  // Tap i of a position; its place is negative if there is none.
  static Tap tap(const AxisMap& map, const int32_t* numbers, int i) {
    if (!map.has_weights) return {numbers[i], S(1)};
    float weight;
    std::memcpy(&weight, numbers + 2 * i + 1, sizeof weight);
    return {numbers[2 * i], S(weight)};
  }

  // All combinations of the taps of a line's maps, and their number. Those of each further map replace a combination;
  // the last ones first, as there is no other room for them.
  int taps_of(int64_t line, Tap* taps) const {
    taps[0] = {placement_.line(line), S(1)};
    int count = 1;
    for (const AxisMap& map : maps_) {
      if (map.by_column) continue;
      const int32_t* const from = numbers(map, line);
      int there = 0;
      while (there < map.taps && tap(map, from, there).place >= 0) ++there;
      for (int i = count; i-- > 0;) {
        const Tap before = taps[i];
        for (int j = 0; j < there; ++j) {
          const Tap one = tap(map, from, j);
          taps[i * there + j] = {before.place + one.place, before.weight * one.weight};
        }
      }
      count *= there;
    }
    return count;
  }

  void add_lines(const Tap* taps, int count, int64_t place, int64_t width, S* to) const {
    alignas(64) S some[programs::kBlock];
    std::fill(to, to + width, S(0));
    for (int i = 0; i < count; ++i) {
      reformer::REFORMER_ISA::read(some, from_, taps[i].place + place, width);
      for (int64_t j = 0; j < width; ++j) to[j] += taps[i].weight * some[j];
    }
  }

  void add_columns(const AxisMap& map, const Tap* taps, int count, int64_t column, int64_t width, S* to) const {
    visit_elements<S>(from_, [&](const auto* elements, auto widened) {
      for (int64_t i = 0; i < width; ++i) {
        const int32_t* const from = numbers(map, column + i);
        S sum = 0;
        for (int j = 0; j < map.taps; ++j) {
          const Tap one = tap(map, from, j);
          if (one.place < 0) break;
          for (int k = 0; k < count; ++k)
            sum += taps[k].weight * one.weight * widened(elements[taps[k].place + one.place]);
        }
        to[i] = sum;
      }
    });
  }

  void choose_columns(const int32_t* columns, int64_t place, int64_t width, S* to) const {
    visit_elements<S>(from_, [&](const auto* elements, auto widened) {
      for (int64_t i = 0; i < width; ++i) to[i] = columns[i] < 0 ? nowhere_ : widened(elements[place + columns[i]]);
    });
  }

  const ProgramCall& call_;
  const ProgramOperand& from_;
  const Placement& placement_;
  const S nowhere_;
  const AxisMaps maps_;
};

}  // namespace reformer::REFORMER_ISA
