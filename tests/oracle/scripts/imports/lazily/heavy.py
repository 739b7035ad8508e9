LOADED = True
print("heavy is loaded")
